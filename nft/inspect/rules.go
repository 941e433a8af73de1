package inspect

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"onerule/nft/dump"
)

// A Rule is a rule of any table. Expressions are in the kernel's form, UserData in that of
// the program that wrote it.
type Rule struct {
	Table, Chain          string
	Handle                uint64
	Expressions, UserData []byte
}

// Rules lists the rules of a table in the order of each chain.
func (r *Reader) Rules(t Table) (list []Rule, err error) {
	err = r.EachRule(t, func(rule Rule) error {
		rule.Expressions, rule.UserData = slices.Clone(rule.Expressions), slices.Clone(rule.UserData)
		list = append(list, rule)
		return nil
	})
	return list, err
}

// EachRule calls f with the rules of a table in the order of each chain. What is in the
// kernel's form is valid during the call only.
func (r *Reader) EachRule(t Table, f func(Rule) error) error { return r.eachRule(t, t.request(), f) }

// EachRuleOf is EachRule for one chain: no other is read.
func (r *Reader) EachRuleOf(t Table, chain string, f func(Rule) error) error {
	return r.eachRule(t, t.request(dump.Name(unix.NFTA_RULE_CHAIN, chain)), f)
}

func (r *Reader) eachRule(t Table, request []byte, f func(Rule) error) error {
	err := r.List(unix.NFT_MSG_GETRULE, request, func(body []byte) error {
		rule, err := parseRule(body)
		// Older kernels do not narrow the listing to a table.
		if err != nil || rule.Table != t.Name {
			return err
		}
		return f(rule)
	})
	if err != nil {
		return fmt.Errorf("list rules of table %s: %w", t.Name, err)
	}
	return nil
}

func parseRule(body []byte) (rule Rule, err error) {
	err = attributes(body, func(kind uint16, v []byte) {
		switch kind {
		case unix.NFTA_RULE_TABLE:
			rule.Table = dump.Text(v)
		case unix.NFTA_RULE_CHAIN:
			rule.Chain = dump.Text(v)
		case unix.NFTA_RULE_HANDLE:
			if len(v) == 8 {
				rule.Handle = binary.BigEndian.Uint64(v)
			}
		case unix.NFTA_RULE_EXPRESSIONS:
			rule.Expressions = v
		case unix.NFTA_RULE_USERDATA:
			rule.UserData = v
		}
	})
	return rule, err
}

// An Expression is one step of a rule. Data is in the kernel's form.
type Expression struct {
	Name string
	Data []byte
}

// Steps gives the expressions of the rule.
func (r Rule) Steps() ([]Expression, error) {
	var list []Expression
	err := dump.EachAttr(r.Expressions, func(_ uint16, expression []byte) error {
		var e Expression
		err := nested(expression, func(kind uint16, v []byte) {
			switch kind {
			case unix.NFTA_EXPR_NAME:
				e.Name = dump.Text(v)
			case unix.NFTA_EXPR_DATA:
				e.Data = v
			}
		})
		list = append(list, e)
		return err
	})
	return list, err
}
