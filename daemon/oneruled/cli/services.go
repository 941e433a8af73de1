package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"onerule/daemon/inspect"
)

func servicesCommand(o Options) *cobra.Command {
	var out output
	limit := 0
	cmd := &cobra.Command{
		Use:   "services [NAME] [flags]",
		Short: "the frontends of Services, and what is decided about each",
		Long: `services lists the frontends of all Services that this node answers for, with what a new
connection to each gets: how many endpoints, by which policy and affinity, or why it is
refused or dropped. With NAME, or NAMESPACE/NAME, it also lists every endpoint and its state.`,
		Example: `  oneruled services
  oneruled services --limit 20
  oneruled services kube-system/kube-dns
  oneruled services -o json | jq '.[] | select(.frontends[].answer == "refuse") | .name'`,
		Args: arguments(0, 1, "one NAME at most"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return errors.New("--limit: it is not below 0")
			}
			name, write, more := "", writeServices, false
			if len(args) > 0 {
				name, write = args[0], writeEach
			}
			return ask(cmd, out, func(ctx context.Context) (list []inspect.Service, err error) {
				list, more, err = some(ctx, o.daemon(), name, limit)
				return list, err
			}, func(s screen, list []inspect.Service) {
				write(s, list)
				if more {
					s.line(dim, "... and more than these %s: --limit 0 shows all", count(limit, "Service"))
				}
			}, func([]inspect.Service) bool { return false })
		},
	}
	out.register(cmd)
	cmd.Flags().IntVar(&limit, "limit", 0, "`number` of Services at most, the first by name; 0: all")
	return cmd
}

// errEnough ends an answer that goes on.
var errEnough = errors.New("enough")

// some gives the first Services of those with a name, all if limit is 0, and whether there
// are more.
func some(ctx context.Context, d inspect.Daemon, name string, limit int) (list []inspect.Service, more bool, err error) {
	list = []inspect.Service{}
	err = d.Services(ctx, name, func(s inspect.Service) error {
		if limit > 0 && len(list) == limit {
			return errEnough
		}
		list = append(list, s)
		return nil
	})
	if errors.Is(err, errEnough) {
		return list, true, nil
	}
	return list, false, err
}

func writeServices(s screen, list []inspect.Service) {
	if len(list) == 0 {
		s.line(plain, "no Services")
		return
	}
	t := table{head: []string{"SERVICE", "FRONTEND", "KIND", "PORT", "POLICY", "AFFINITY", "ENDPOINTS", "ANSWER", "WHY"}}
	for _, service := range list {
		name := text("%s/%s", service.Namespace, service.Name).in(cyan)
		for _, f := range service.Frontends {
			t.add(name, text("%s", f), text("%s", f.Kind), text("%s", orDash(f.PortName)), text("%s", f.Policy),
				text("%s", affinity(service)), number("%s", endpoints(f)), answer(f), text("%s", why(f)))
			name = cell{}
		}
		if len(service.Frontends) == 0 {
			t.add(name, text("-"))
		}
	}
	t.write(s)
	for _, service := range list {
		for _, note := range service.Notes {
			s.line(yellow, "%s/%s: %s", service.Namespace, service.Name, note)
		}
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func affinity(s inspect.Service) string {
	if s.AffinitySeconds == 0 {
		return "-"
	}
	return brief(time.Duration(s.AffinitySeconds) * time.Second)
}

// endpoints says how many there are: for a Local policy those on this node, of all.
func endpoints(f inspect.Frontend) string {
	if f.Policy == "Local" {
		return fmt.Sprintf("%d here of %d", len(f.LocalEndpoints), len(f.Endpoints))
	}
	return fmt.Sprint(len(f.Endpoints))
}

func answer(f inspect.Frontend) cell {
	c := text("%s", f.Answer)
	switch f.Answer {
	case "refuse":
		return c.in(red)
	case "drop":
		return c.in(yellow)
	}
	return c.in(green)
}

func why(f inspect.Frontend) string {
	var parts []string
	if f.Reason != "" {
		parts = append(parts, f.Reason)
	}
	if f.Guarded {
		from := strings.Join(f.Sources, ", ")
		if from == "" {
			from = "nobody"
		}
		parts = append(parts, "lets in "+from)
	}
	return strings.Join(parts, "; ")
}

// writeEach writes Services with all that is known of them.
func writeEach(s screen, list []inspect.Service) {
	for i, service := range list {
		if i > 0 {
			s.line(plain, "")
		}
		writeServices(s, []inspect.Service{service})
		for _, port := range service.Ports {
			s.line(plain, "")
			writePort(s, service, port)
		}
	}
}

func writePort(s screen, service inspect.Service, port inspect.Port) {
	s.line(bold, "endpoints of port %s %d/%s", orDash(port.Name), port.Port, port.Protocol)
	if len(port.Endpoints) == 0 {
		s.line(plain, "  none: no EndpointSlice has any")
		return
	}
	t, used := table{indent: "  "}, used(service, port)
	for _, e := range port.Endpoints {
		gets := text("gets no new connections").in(dim)
		if used[e.Address] {
			gets = cell{}
		}
		t.add(text("%s", e.Address), place(e), state(e.State), gets)
	}
	t.write(s)
}

func place(e inspect.Endpoint) cell {
	switch {
	case e.Here:
		return text("this node")
	case e.Node == "":
		return text("node unknown")
	}
	return text("%s", e.Node)
}

func state(word string) cell {
	if word == "ready" || word == "attached" {
		return text("%s", word).in(green)
	}
	return text("%s", word).in(yellow)
}

// used gives the endpoints of a port that new connections may get.
func used(service inspect.Service, port inspect.Port) map[string]bool {
	all := map[string]bool{}
	for _, f := range service.Frontends {
		if f.PortName != port.Name || f.Protocol != port.Protocol {
			continue
		}
		list := slices.Concat(f.Endpoints, f.LocalEndpoints)
		if f.Kind == "ClusterIP" && f.Policy == "Local" { // of others, who asks from this node gets all
			list = f.LocalEndpoints
		}
		for _, address := range list {
			all[address] = true
		}
	}
	return all
}
