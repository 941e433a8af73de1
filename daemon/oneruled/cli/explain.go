package cli

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"onerule/daemon/inspect"
)

func explainCommand(o Options) *cobra.Command {
	var out output
	var in string
	cmd := &cobra.Command{
		Use:   "explain FROM TO:PORT/PROTO [flags]",
		Short: "what becomes of a packet, step by step, in the kernel now",
		Long: `explain looks in the kernel for what becomes of the first packet of a new connection: which
element of which map matches, which chain follows, which endpoints it can reach and whether
they see the sender's address, or which rule refuses or drops it and why. It compares what
the kernel holds with what it should hold, and says where they differ.

FROM is an IP address, or "node" for this node itself. PROTO is tcp, udp or sctp. What is
established already goes on as it began, whatever is shown here.`,
		Example: `  oneruled explain 10.244.0.5 10.96.0.10:53/udp
  oneruled explain node [fd00:96::10]:443/tcp
  oneruled explain 192.0.2.7 198.51.100.1:30080/tcp --in eth0`,
		Args: arguments(2, 2, "FROM and TO:PORT/PROTO"),
		RunE: func(cmd *cobra.Command, args []string) error {
			q, err := parseQuestion(args[0], args[1])
			if err != nil {
				return err
			}
			q.In = in
			return ask(cmd, out, func(ctx context.Context) (inspect.Explanation, error) { return o.daemon().Explain(ctx, q) }, writeExplanation,
				func(e inspect.Explanation) bool { return len(e.Wrong)+len(e.Differs) > 0 })
		},
	}
	out.register(cmd)
	cmd.Flags().StringVar(&in, "in", "", "`interface` that the packet comes in by; unless it is given: that by which the node reaches FROM")
	return cmd
}

func parseQuestion(from, to string) (q inspect.Query, err error) {
	if from != "node" {
		if q.From, err = netip.ParseAddr(from); err != nil {
			return q, fmt.Errorf("FROM: %q is neither an IP address nor node", from)
		}
		q.From = q.From.Unmap()
	}
	address, protocol, ok := strings.Cut(to, "/")
	if !ok {
		return q, fmt.Errorf("TO:PORT/PROTO: %q has no protocol, as in %s/tcp", to, to)
	}
	if q.To, err = netip.ParseAddrPort(address); err != nil {
		return q, fmt.Errorf("TO:PORT/PROTO: %q is no IP address with a port, as in 10.96.0.1:443 or [fd00:96::1]:443", address)
	}
	q.To = netip.AddrPortFrom(q.To.Addr().Unmap(), q.To.Port())
	switch q.Protocol = strings.ToUpper(protocol); q.Protocol {
	case "TCP", "UDP", "SCTP":
		return q, nil
	}
	return q, fmt.Errorf("TO:PORT/PROTO: %q is neither tcp, udp nor sctp", protocol)
}

func writeExplanation(s screen, e inspect.Explanation) {
	by := ""
	if e.In != "" {
		by = ", by " + e.In
	}
	s.line(bold, "%s (%s%s) to %s/%s, in table %s", e.From, e.Origin, by, e.To, e.Protocol, e.Table)
	s.line(plain, "")
	t := table{indent: "  "}
	for i, stage := range e.Stages {
		t.add(number("%d", i+1), text("%s", stage.Chain).in(cyan), text("%s", stage.Found), text("-> %s", stage.Then).in(dim))
	}
	t.write(s)
	s.line(plain, "")
	writeVerdict(s, e)
	for _, note := range e.Notes {
		s.line(yellow, "note: %s", note)
	}
	s.line(plain, "")
	writeFaults(s, e)
}

func writeVerdict(s screen, e inspect.Explanation) {
	service := ""
	if e.Service != "" {
		service = fmt.Sprintf(", for Service %s", e.Service)
		if e.Port != "" {
			service += " port " + e.Port
		}
		service += " (" + e.Kind + ")"
	}
	if e.Kind == "hostPort" {
		service = ", for a pod (hostPort)"
	}
	of := map[string]colour{"translated": green, "proxied": green, "refused": red, "dropped": red, "astray": red}[e.Verdict]
	what := e.Verdict
	if n := len(e.Reached); n > 0 {
		what += " to " + count(n, "endpoint")
		if n > 1 {
			what = e.Verdict + fmt.Sprintf(" to one of %d endpoints", n)
		}
	}
	s.line(of, "%s%s", what, service)
	if e.Reason != "" {
		s.line(plain, "  %s", e.Reason)
	}
	t := table{indent: "    "}
	for _, r := range e.Reached {
		sees := "sees the sender's address"
		if r.Masqueraded {
			sees = "sees an address of this node"
		}
		t.add(text("%s", r.Address), place(r.Endpoint), state(r.State), text("%s", sees))
	}
	t.write(s)
}

func writeFaults(s screen, e inspect.Explanation) {
	if len(e.Wrong)+len(e.Differs) == 0 {
		s.line(green, "the kernel holds what it should")
		return
	}
	for _, wrong := range e.Wrong {
		s.line(red, "the table is not as this daemon writes it: %s", wrong)
	}
	if len(e.Differs) == 0 {
		return
	}
	s.line(red, "the kernel differs from what it should hold; this would put it right:")
	for _, line := range e.Differs {
		s.line(plain, "  %s", line)
	}
	s.line(plain, "with that, the packet is %s", e.Wanted)
}
