package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// wrongPort is a port that no Service has.
const wrongPort = 81

// refuseScene sends requests where nobody serves.
func refuseScene(ctx context.Context, s *screen, w *world) error {
	s.scene("Where nobody serves")
	s.say("A client should learn at once that it waits for nothing. Only an address that no Service " +
		"holds stays silent: traffic to it is dropped, as kube-proxy does, since a Service may get it any time.")
	refused, dropped := true, true
	rows := [][]string{{"to", "pod-c, IPv4", "pod-c, IPv6", "node, IPv4", "node, IPv6"}}
	for _, to := range []struct {
		what string
		addr func(family int) netip.AddrPort
	}{
		{"silent:80, no endpoints", func(i int) netip.AddrPort { return silent().frontend(i, servicePort) }},
		{"web:81, no such port", func(i int) netip.AddrPort { return web().frontend(i, wrongPort) }},
	} {
		answers, err := w.everywhere(ctx, to.addr, patience)
		if err != nil {
			return err
		}
		row := []string{to.what}
		for _, a := range answers {
			row = append(row, outcome(a))
			refused = refused && errors.Is(a.err, syscall.ECONNREFUSED) && a.took < firstSYN
		}
		rows = append(rows, row)
	}
	const silence = 1500 * time.Millisecond // long enough for a second SYN
	answers, err := w.everywhere(ctx, func(i int) netip.AddrPort {
		return netip.AddrPortFrom(families()[i].unallocated(), servicePort)
	}, silence)
	if err != nil {
		return err
	}
	row := []string{"no Service's address"}
	for _, a := range answers {
		row = append(row, outcome(a))
		var timeout net.Error
		dropped = dropped && errors.As(a.err, &timeout) && timeout.Timeout()
	}
	s.table(append(rows, row)...)
	s.claim(refused, "no endpoints, or no such port: refused with the first SYN, from pod and node, over both families")
	s.claim(dropped, "%s, which was answered outside before: dropped, and %s later still silent", families()[0].unallocated(), figures(silence))
	return nil
}

// everywhere makes one request from the third pod and from the node, over each
// family, all at once.
func (w *world) everywhere(ctx context.Context, to func(family int) netip.AddrPort, wait time.Duration) ([4]answer, error) {
	var answers [4]answer
	var failed [4]error
	var wg sync.WaitGroup
	for i, from := range []host{w.pods[2].host, w.node} {
		for j := range families() {
			wg.Go(func() { answers[2*i+j], failed[2*i+j] = from.one(ctx, to(j), wait) })
		}
	}
	wg.Wait()
	return answers, errors.Join(failed[:]...)
}

// outcome says in a few words what became of a request.
func outcome(a answer) string {
	var timeout net.Error
	switch {
	case a.err == nil:
		return "answered by " + a.pod
	case errors.Is(a.err, syscall.ECONNREFUSED):
		return "refused, " + figures(a.took)
	case errors.As(a.err, &timeout) && timeout.Timeout():
		return "silent"
	default:
		return fmt.Sprint(a.err)
	}
}
