package nft

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// nft reads the tables of everybody before it does anything, and dies where one holds what
// it has no words for: 1.0.6 of a set that a later version made from an expression that
// came with it. Then it is run apart, in an empty network namespace, where it makes what
// it is asked for, and what it made is read there and written to our table by netlink.
// That takes CAP_SYS_ADMIN.

// errNotApart is of a process that may not do that.
var errNotApart = errors.New("nft dies of tables of others, and to run it apart takes the capability SYS_ADMIN")

// died says whether nft was ended by a signal, as it is by a fault of its own.
func died(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	return ok && exit.ExitCode() == -1
}

// do runs a transaction, apart if need be.
func (w rulesetWriter) do(ctx context.Context, tx *knftables.Transaction) error {
	err := w.nft.Run(ctx, tx)
	if !died(err) || ctx.Err() != nil { // then it was ended for being late
		return err
	}
	if aside := apart(ctx, w.skeleton.Family, tx.String()); aside != nil {
		return fmt.Errorf("%w: %w", err, aside)
	}
	return nil
}

// checked tries a transaction, apart if need be.
func checked(ctx context.Context, nft knftables.Interface, tx *knftables.Transaction) error {
	err := nft.Check(ctx, tx)
	if !died(err) || ctx.Err() != nil {
		return err
	}
	return inEmptyNamespace(func() error { return nft.Check(ctx, tx) })
}

// A command is a line of a script for nft.
type command struct{ verb, noun, name, line string }

// commands gives what a script for our table says, which has one command in each line.
func commands(script string) ([]command, error) {
	var list []command
	for line := range strings.Lines(script) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
			continue
		case len(words) < 4 || words[1] != "table" && len(words) < 5:
			return nil, fmt.Errorf("no command for nft: %q", line)
		}
		c := command{verb: words[0], noun: words[1], line: line}
		if c.noun != "table" {
			c.name = words[4] // of a rule: its chain
		}
		list = append(list, c)
	}
	return list, nil
}

// apart does what a script says without nft's looking at the tables of others.
func apart(ctx context.Context, family Family, script string) error {
	list, err := commands(script)
	if err != nil {
		return err
	}
	have, err := readRaw(family, TableName)
	if err != nil {
		return err
	}
	var made rawTable
	if err := inEmptyNamespace(func() error { return compile(ctx, family, list, have, &made) }); err != nil {
		return err
	}
	b, err := made.batch(family, list)
	if err != nil {
		return err
	}
	return b.send()
}

// inEmptyNamespace runs f in a network namespace without anything, which goes with it.
func inEmptyNamespace(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("%w: make a network namespace: %w", errNotApart, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// compile lets nft make what the commands add, beside what our table has and they do not
// delete, and reads it.
func compile(ctx context.Context, family Family, list []command, have rawTable, made *rawTable) error {
	var script strings.Builder
	for _, c := range list {
		switch {
		case c.verb == "add":
			script.WriteString(c.line)
		case c.verb == "delete" && c.noun == "table":
			script.Reset()
			have = rawTable{name: TableName}
		case c.verb == "delete":
			have.drop(c)
		}
	}
	if err := have.copied(family).send(); err != nil {
		return fmt.Errorf("copy our table: %w", err)
	}
	nft := exec.CommandContext(ctx, "nft", "-f", "-")
	nft.Stdin = strings.NewReader(script.String())
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("nft apart: %w: %s", err, strings.TrimSpace(string(out)))
	}
	var err error
	*made, err = readRaw(family, TableName)
	return err
}
