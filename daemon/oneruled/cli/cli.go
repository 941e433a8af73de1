package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"onerule/daemon/inspect"
)

// The exit codes.
const (
	OK       = 0 // it was answered, and all is well
	Failed   = 1 // there is no answer: the question is wrong, or something failed
	Found    = 2 // it was answered, and something is not as it should be
	NoDaemon = 3 // no daemon answers
)

// errFound says that something is not as it should be, which was shown.
var errFound = errors.New("something is not as it should be")

// SomethingFound gives the error of a command that has shown what is not as it should be.
func SomethingFound() error { return errFound }

// ExitCode gives the code for an error, and whether the error has to be told.
func ExitCode(err error) (code int, tell bool) {
	switch {
	case err == nil:
		return OK, false
	case errors.Is(err, errFound):
		return Found, false
	case errors.Is(err, inspect.ErrNoDaemon):
		return NoDaemon, true
	}
	return Failed, true
}

// exitCodes tells those of commands that ask the daemon, below the help of each.
const exitCodes = `Exit codes:
  0  it was answered, and all is well
  1  there is no answer: the question is wrong, or something failed
  2  it was answered, and something is not as it should be
  3  no daemon answers
`

// codesKey is the annotation of commands that have exit codes of their own.
const codesKey = "exit codes"

// Codes gives the annotation of a command that asks no daemon: what the codes 0 and 2 mean.
// Without a word for it there is no 2.
func Codes(well, found string) map[string]string {
	text := "Exit codes:\n  0  " + well + "\n  1  it is not: the command line is wrong, or something failed\n"
	if found != "" {
		text += "  2  " + found + "\n"
	}
	return map[string]string{codesKey: text}
}

// Options are what the commands work with.
type Options struct {
	// Socket is where the daemon answers. It is read when a command runs.
	Socket *string
	Now    func() time.Time
}

func (o Options) daemon() inspect.Daemon { return inspect.Client{Socket: *o.Socket} }

// Commands gives the commands, but for diff: see Diff.
func Commands(o Options) []*cobra.Command {
	return completes(statusCommand(o), topCommand(o), servicesCommand(o), explainCommand(o))
}

// output is the value of -o.
type output struct{ json bool }

func (o *output) String() string {
	if o.json {
		return "json"
	}
	return "text"
}

func (o *output) Set(s string) error {
	if s != "text" && s != "json" {
		return fmt.Errorf("it is neither text nor json")
	}
	o.json = s == "json"
	return nil
}

func (o *output) Type() string { return "format" }

// register adds -o to a command.
func (o *output) register(cmd *cobra.Command) {
	cmd.Flags().VarP(o, "output", "o", "`format`: text, or json for programs")
	choices(cmd, "output", "text", "json")
}

// show writes an answer, as JSON or by a function.
func show[T any](w io.Writer, o output, answer T, text func(screen, T)) error {
	if !o.json {
		text(screenOf(w), answer)
		return nil
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(answer); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// Help writes the help of a command.
func Help(w io.Writer, cmd *cobra.Command) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.AddFlagSet(cmd.LocalFlags())
	flags.AddFlagSet(cmd.InheritedFlags())
	fmt.Fprintf(w, "%s\n\nUsage:\n  %s\n\nExamples:\n%s\n\nFlags:\n%s\n%s", cmd.Long, cmd.UseLine(), cmd.Example,
		flags.FlagUsagesWrapped(helpWidth), cmp.Or(cmd.Annotations[codesKey], exitCodes))
}

// helpWidth is how long the lines of the help are at most.
const helpWidth = 100

// arguments refuses another number of arguments than there must be.
func arguments(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return fmt.Errorf("%s takes %s, not %q (%s --help shows an example)", cmd.Name(), what, strings.Join(args, " "), cmd.CommandPath())
		}
		return nil
	}
}

// ask runs a question, shows its answer, and says whether something was found.
func ask[T any](cmd *cobra.Command, o output, question func(context.Context) (T, error), text func(screen, T), found func(T) bool) error {
	answer, err := question(cmd.Context())
	if err != nil {
		return err
	}
	if err := show(cmd.OutOrStdout(), o, answer, text); err != nil {
		return err
	}
	if found(answer) {
		return errFound
	}
	return nil
}

// ago says how long ago something was, for people.
func ago(now, then time.Time) string { return brief(now.Sub(then)) + " ago" }

// brief gives the two largest units of a time.
func brief(d time.Duration) string {
	if d < time.Second {
		return "less than 1s"
	}
	units := []struct {
		name string
		of   time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}
	first := slices.IndexFunc(units, func(u struct {
		name string
		of   time.Duration
	}) bool {
		return d >= u.of
	})
	text := fmt.Sprintf("%d%s", d/units[first].of, units[first].name)
	if first+1 < len(units) {
		if rest := d % units[first].of / units[first+1].of; rest > 0 {
			text += fmt.Sprintf("%d%s", rest, units[first+1].name)
		}
	}
	return text
}

// took gives a short time in seconds, milliseconds or microseconds.
func took(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

// count says how many there are of something.
func count(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
