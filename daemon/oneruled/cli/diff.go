package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"onerule/daemon/inspect"
)

// Diff gives the command diff, to which whoever calls adds flags that dry looks at: it
// gives nil where they do not ask for a comparison without a daemon.
func Diff(o Options, dry func(*cobra.Command) (func(context.Context) (inspect.Diff, error), error)) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "diff [flags]",
		Short: "what the daemon would change in the kernel now, without changing it",
		Long: `diff reads the tables and shows what the running daemon would change in them: nothing, if all
is well. With --manifests DIR it asks no daemon, and shows what one with those files would
change; then all flags of the daemon count, as in --cluster-cidr and --hostname-override
(oneruled --help lists them).`,
		Example: `  oneruled diff
  oneruled diff --manifests ./services --cluster-cidr 10.244.0.0/16`,
		Args: arguments(0, 0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			question, err := dry(cmd)
			if err != nil {
				return err
			}
			if question == nil {
				question = o.daemon().Diff
			}
			return ask(cmd, out, question, writeDiff, func(d inspect.Diff) bool { return !d.Empty() })
		},
	}
	out.register(cmd)
	return cmd
}

func writeDiff(s screen, d inspect.Diff) {
	for _, t := range d.Tables {
		if t.Empty() {
			s.line(green, "table %s: nothing to change", t.Table)
			continue
		}
		s.line(bold, "table %s: %s", t.Table, tally(t))
		for _, rule := range t.Rules {
			s.line(yellow, "  ! %s", rule)
		}
		for _, l := range t.Changes {
			of := green
			if l.Sign == "-" {
				of = red
			}
			s.line(of, "  %s %s { %s }", l.Sign, l.Set, l.Element)
		}
		if more := t.Add + t.Delete - len(t.Changes); more > 0 {
			s.line(dim, "  ... and %s", count(more, "more element"))
		}
	}
	for _, skipped := range d.Skipped {
		s.line(yellow, "skipped: %s", skipped)
	}
	for _, note := range d.Notes {
		s.line(yellow, "note: %s", note)
	}
}

func tally(t inspect.TableDiff) string {
	var parts []string
	if len(t.Rules) > 0 {
		parts = append(parts, "rules or sets to write")
	}
	if t.Add > 0 {
		parts = append(parts, count(t.Add, "element")+" to add")
	}
	if t.Delete > 0 {
		parts = append(parts, count(t.Delete, "element")+" to delete")
	}
	return strings.Join(parts, ", ")
}
