package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"onerule/daemon/inspect"
)

// topOptions are what top is asked for.
type topOptions struct {
	out      output
	every    time.Duration
	readings int
	sort     string
	limit    int
	services bool
	html     string
}

func topCommand(o Options) *cobra.Command {
	var t topOptions
	cmd := &cobra.Command{
		Use:   "top [flags]",
		Short: "new connections per second that Services and their endpoints are given",
		Long: `top shows how many new connections each Service and each of its endpoints is given, per
second and since counting began, as the kernel counts them. On a terminal it goes on in
place until it is interrupted. One reading takes as long as --every.

With --html it writes one reading as a page for a browser, with bars. The daemon itself shows
the same, live, at /ui beside /metrics.`,
		Example: `  oneruled top
  oneruled top --sort total --services
  oneruled top -n 1 --every 5s
  oneruled top -o json | jq '.services[0]'
  oneruled top --html spread.html`,
		Args: arguments(0, 0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := t.check(); err != nil {
				return err
			}
			if t.out.json || t.html != "" {
				t.readings = 1
			}
			return t.run(cmd, o.daemon())
		},
	}
	t.out.register(cmd)
	cmd.Flags().DurationVarP(&t.every, "every", "d", 2*time.Second, "`time` of one reading")
	cmd.Flags().IntVarP(&t.readings, "readings", "n", 0, "`number` of readings; 0: until it is interrupted. With -o json it is one")
	cmd.Flags().StringVar(&t.sort, "sort", "rate", "`order`: by rate, total or name")
	choices(cmd, "sort", "rate", "total", "name")
	cmd.Flags().IntVar(&t.limit, "limit", 0, "`number` of Services at most; 0: as many as the terminal has room for, or all")
	cmd.Flags().BoolVar(&t.services, "services", false, "only the sum of each Service")
	cmd.Flags().StringVar(&t.html, "html", "", "`file` to write one reading to, as a page that needs nothing else; -: standard output")
	return cmd
}

func (t topOptions) check() error {
	switch {
	case !slices.Contains([]string{"rate", "total", "name"}, t.sort):
		return fmt.Errorf("--sort: %q is neither rate, total nor name", t.sort)
	case t.every < 100*time.Millisecond:
		return errors.New("--every: it is 100ms at least")
	case t.html != "" && t.out.json:
		return errors.New("--html and -o json: only one of them")
	case t.readings < 0 || t.limit < 0:
		return errors.New("--readings and --limit: they are not below 0")
	}
	return nil
}

// run reads and shows until it was often enough, or is interrupted.
func (t topOptions) run(cmd *cobra.Command, d inspect.Daemon) error {
	ctx := cmd.Context()
	s := screenOf(cmd.OutOrStdout())
	before, err := t.hits(ctx, d)
	if err != nil {
		return err
	}
	tick := time.NewTicker(t.every)
	defer tick.Stop()
	for n := 1; t.readings == 0 || n <= t.readings; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := t.hits(ctx, d)
		if err != nil {
			return err
		}
		r := inspect.ReadingOf(before, now, t.sort)
		before = now
		switch {
		case t.html != "":
			return writePage(s, t.html, r)
		case t.out.json:
			return show(s, t.out, r, nil)
		}
		t.write(s, r, n == 1)
	}
	return nil
}

func (t topOptions) hits(ctx context.Context, d inspect.Daemon) (inspect.Hits, error) {
	h, err := d.Hits(ctx)
	if err == nil && h.Off != "" {
		err = errors.New(h.Off)
	}
	return h, err
}
