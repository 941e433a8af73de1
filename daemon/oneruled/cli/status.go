package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"onerule/daemon/inspect"
)

func statusCommand(o Options) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "status [flags]",
		Short: "what the daemon and its tables are like, and what is amiss",
		Long: `status shows what the running daemon is and knows: where objects come from, the kernel and
nft that it found, what its tables hold, the last load and the last change, and what is
degraded and why.`,
		Example: `  oneruled status
  oneruled status -o json | jq .degraded`,
		Args: arguments(0, 0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			write := func(s screen, status inspect.Status) { writeStatus(s, status, o.Now()) }
			return ask(cmd, out, func(ctx context.Context) (inspect.Status, error) { return o.daemon().Status(ctx) }, write,
				func(s inspect.Status) bool { return len(s.Degraded) > 0 })
		},
	}
	out.register(cmd)
	return cmd
}

func writeStatus(s screen, status inspect.Status, now time.Time) {
	s.line(bold, "oneruled %s on node %s", status.Version, status.Node)
	facts := table{indent: "  "}
	facts.add(text("process"), text("%d, since %s (%s)", status.PID, status.Started.Format(time.DateTime), ago(now, status.Started)))
	facts.add(text("source"), text("%s", status.Source))
	facts.add(text("mode"), text("%s, kernel %s, nft %s", status.Mode, cmp.Or(status.Kernel, "unknown"), cmp.Or(status.Nft, "unknown")))
	facts.add(text("services"), text("%s, %s", count(status.Services, "Service"), count(status.Frontends, "frontend")))
	loaded := "never"
	if status.Loaded != nil {
		loaded = status.Loaded.Format(time.DateTime) + " (" + ago(now, *status.Loaded) + ")"
	}
	facts.add(text("loaded"), text("%s", loaded))
	change := "none yet"
	if c := status.LastChange; c != nil {
		change = count(c.Objects, "object") + ", in the kernel " + took(c.Seconds) + " after it came in (" + ago(now, c.At) + ")"
	}
	facts.add(text("last change"), text("%s", change))
	if status.PendingSeconds > 0 {
		facts.add(text("pending"), text("a change has been waiting for the kernel for %s", took(status.PendingSeconds)).in(yellow))
	}
	facts.add(text("counting"), text("%s", cmp.Or(status.Counting, "off")))
	if n := status.PodNetwork; n != nil {
		facts.add(text("pod network"), podNetwork(*n))
	}
	facts.write(s)
	writeTables(s, status.Tables, now)
	s.line(plain, "")
	if len(status.Degraded) == 0 {
		s.line(green, "all is well")
		return
	}
	s.line(red, "degraded:")
	for _, why := range status.Degraded {
		s.line(plain, "  - %s", why)
	}
}

func podNetwork(n inspect.PodNetwork) cell {
	words := []string{cmp.Or(strings.Join(n.Ranges, ", "), "no ranges"), count(n.Peers, "other node")}
	if n.Peers > 0 {
		words[1] += fmt.Sprintf(" (%s by routes, %d by VXLAN)", count(n.Routed, "range"), n.Tunnelled)
	}
	if n.List != "" {
		words = append(words, "list of plugins "+n.List)
	}
	if !n.Served {
		return text("%s", strings.Join(append(words, "pods not served yet"), "; ")).in(yellow)
	}
	return text("%s", strings.Join(append(words, "pods served"), "; "))
}

func writeTables(s screen, list []inspect.Table, now time.Time) {
	if len(list) == 0 {
		return
	}
	s.line(plain, "")
	tables := table{head: []string{"TABLE", "RULES", "ELEMENTS", "LAST LOAD"}}
	sizes := map[string]map[string]int{}
	for _, t := range list {
		load := text("never").in(red)
		if t.Load != nil {
			load = text("%s, took %s", ago(now, t.Load.At), took(t.Load.Seconds))
		}
		if !t.Known {
			load = text("%s; another one is due", load.text).in(yellow)
		}
		tables.add(text("%s", t.Name).in(cyan), number("%d", t.Rules), number("%d", t.Elements), load)
		for _, set := range t.Sets {
			if sizes[set.Name] == nil {
				sizes[set.Name] = map[string]int{}
			}
			sizes[set.Name][t.Name] = set.Elements
		}
	}
	tables.write(s)
	if len(sizes) == 0 {
		return
	}
	s.line(plain, "")
	sets := table{head: []string{"SET OR MAP"}}
	for _, t := range list {
		sets.head = append(sets.head, t.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		row := []cell{text("%s", name)}
		for _, t := range list {
			row = append(row, number("%d", sizes[name][t.Name]))
		}
		sets.add(row...)
	}
	sets.write(s)
}
