package nft

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"onerule/nft/dump"
	"onerule/nft/inspect"
)

// Replace makes a table what a script for nft says, with its elements and in place of what
// it is, in one transaction. nft is run apart if it dies of tables of others. Nothing in the
// script may lead to another table.
func Replace(ctx context.Context, family Family, table, script string) error {
	emptied := fmt.Sprintf("add table %[1]s %[2]s\ndelete table %[1]s %[2]s\n", family, table)
	err := runScript(ctx, emptied+script)
	if !died(err) || ctx.Err() != nil { // then it was ended for being late
		return err
	}
	if aside := replaceApart(ctx, family, table, script); aside != nil {
		return fmt.Errorf("%w: %w", err, aside)
	}
	return nil
}

// runScript lets nft do what a script says. Its error has the first line of what nft said.
func runScript(ctx context.Context, script string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if first == "" {
		return fmt.Errorf("run nft: %w", err)
	}
	return fmt.Errorf("run nft: %w: %s", err, first)
}

// replaceApart does what a script says without nft's looking at the tables of others.
func replaceApart(ctx context.Context, family Family, table, script string) error {
	var b *batch
	err := inEmptyNamespace(func() (err error) {
		if err := runScript(ctx, script); err != nil {
			return fmt.Errorf("apart: %w", err)
		}
		b, err = again(family, table)
		return err
	})
	if err != nil {
		return err
	}
	return b.send()
}

// again reads a table in the network namespace of the calling thread, and gives what makes
// it anew.
func again(family Family, table string) (*batch, error) {
	t, err := readRaw(family, table)
	if err != nil {
		return nil, err
	}
	if t.attrs == nil {
		return nil, fmt.Errorf("nft made no table %s %s", family, table)
	}
	b := &batch{family: family}
	b.add(unix.NFT_MSG_NEWTABLE, netlink.Create, t.attrs)
	b.add(unix.NFT_MSG_DELTABLE, 0, dump.Name(unix.NFTA_TABLE_NAME, table))
	b.messages = append(b.messages, t.copied(family).messages...)
	for _, c := range t.chains {
		for _, rule := range t.rules[c.name] {
			b.add(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, rule)
		}
	}
	for _, set := range t.sets {
		lists, err := readElements(family, table, set.name)
		if err != nil {
			return nil, err
		}
		for _, list := range lists {
			b.add(unix.NFT_MSG_NEWSETELEM, netlink.Create, list)
		}
	}
	return b, nil
}

// readElements reads those of a set as lists that add them again.
func readElements(family Family, table, set string) (lists [][]byte, err error) {
	r, err := inspect.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	named := slices.Concat(dump.Name(unix.NFTA_SET_ELEM_LIST_TABLE, table), dump.Name(unix.NFTA_SET_ELEM_LIST_SET, set))
	err = r.List(unix.NFT_MSG_GETSETELEM, dump.Request(nfFamily(family), named), func(body []byte) error {
		attrs, err := dump.Attributes(body)
		if err != nil {
			return err
		}
		if list := dump.Find(attrs, unix.NFTA_SET_ELEM_LIST_ELEMENTS); len(list) > 0 {
			lists = append(lists, slices.Concat(named, dump.Attr(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list)))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read elements of set %s of table %s %s: %w", set, family, table, err)
	}
	return lists, nil
}

// taken gives a rule that the kernel takes.
func taken(rule []byte) []byte {
	return rewritten(rule, func(kind uint16, list []byte) []byte {
		if kind != unix.NFTA_RULE_EXPRESSIONS {
			return list
		}
		return rewritten(list, func(_ uint16, expression []byte) []byte { return takenExpression(expression) })
	})
}

// takenExpression leaves out the flags that the kernel tells of an expression which writes
// into a header, and does not take back.
func takenExpression(expression []byte) []byte {
	if dump.Text(dump.Find(expression, unix.NFTA_EXPR_NAME)) != "exthdr" {
		return expression
	}
	return rewritten(expression, func(kind uint16, data []byte) []byte {
		if kind != unix.NFTA_EXPR_DATA || dump.Find(data, unix.NFTA_EXTHDR_SREG) == nil {
			return data
		}
		return rewritten(data, func(kind uint16, v []byte) []byte {
			if kind == unix.NFTA_EXTHDR_FLAGS {
				return nil
			}
			return v
		})
	})
}

// rewritten gives attributes with other values; one that becomes nil is left out. What can't
// be read is left as it is, for the kernel to refuse.
func rewritten(attrs []byte, value func(kind uint16, v []byte) []byte) []byte {
	var b []byte
	err := dump.EachAttr(attrs, func(kind uint16, v []byte) error {
		if v = value(kind, v); v != nil {
			b = append(b, dump.Attr(kind, v)...)
		}
		return nil
	})
	if err != nil {
		return attrs
	}
	return b
}
