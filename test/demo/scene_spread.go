package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// perBurst is how many requests each client makes, for each family.
const perBurst = 200

// fairShare is what an endpoint gets of perBurst at least: 5.6 standard deviations
// below the half.
const fairShare = 60

// spreadScene starts the daemon and makes requests to a Service of two endpoints.
func spreadScene(ctx context.Context, s *screen, w *world) error {
	s.scene("A Service of two endpoints")
	if err := w.writeServices(); err != nil {
		return err
	}
	s.say("The daemon reads Kubernetes' own objects: from an API server, or from files. Here are two " +
		"of the files; the slice for IPv6, the ServiceCIDR and a Service without endpoints lie beside them.")
	s.file("manifests/web.yaml", web().manifest())
	s.file("manifests/web-ipv4.yaml", web().slice(families()[0], w.pods[:2]))
	took, err := w.startProxy(ctx)
	if err != nil {
		return err
	}
	s.file("bin/oneruled "+strings.ReplaceAll(strings.Join(w.arguments(), " "), w.dir+"/", ""),
		fmt.Sprintf("healthy, so everything is in the kernel: %s after it was started\n", figures(took)))
	return spread(ctx, s, w)
}

// writeServices writes the manifests that the daemon starts with.
func (w *world) writeServices() error {
	files := map[string]string{
		"ranges.yaml": serviceRanges(),
		"web.yaml":    web().manifest(),
		"silent.yaml": silent().manifest(),
	}
	for _, f := range families() {
		files[web().sliceFile(f)] = web().slice(f, w.pods[:2])
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if _, err := w.write(name, files[name]); err != nil {
			return err
		}
	}
	return nil
}

// spread makes the requests, and shows who answered and whom the servers saw.
func spread(ctx context.Context, s *screen, w *world) error {
	own, err := w.node.addresses()
	if err != nil {
		return err
	}
	client := w.pods[2]
	total := newTally()
	even := true
	var strange []string
	for _, from := range []host{client.host, w.node, w.outside} {
		for i, f := range families() {
			t, err := from.burst(ctx, web().frontend(i, servicePort), perBurst)
			if err != nil {
				return err
			}
			total.merge(t)
			expected := own
			if from == client.host {
				expected = []netip.Addr{client.addrs[f.name]}
			}
			seen := slices.SortedFunc(maps.Keys(t.seen), netip.Addr.Compare)
			strange = append(strange, unexpected(from, seen, expected)...)
			s.line(fmt.Sprintf("    %d requests from %s to %s; the servers saw %s", t.requests, from.name, web().frontend(i, servicePort), addresses(seen)))
			for _, p := range w.pods[:2] {
				s.bar(p.name, t.pods[p.name], t.requests)
				even = even && t.pods[p.name] >= fairShare
			}
		}
	}
	s.gap()
	s.claim(total.flawless(), "%d requests: %d failed%s, %d SYNs were lost; the slowest took %s",
		total.requests, total.failed, total.failure(), total.lost, figures(total.slowest))
	s.claim(even, "each endpoint has its share of every group: at least %d of %d", fairShare, perBurst)
	s.claim(len(strange) == 0, "a pod keeps its address; the node, and what comes from outside, is masqueraded as the node%s", listed(strange))
	return nil
}

// unexpected names the addresses that a host's requests should not have come from.
func unexpected(from host, seen, expected []netip.Addr) []string {
	var strange []string
	for _, a := range seen {
		if !slices.Contains(expected, a) {
			strange = append(strange, fmt.Sprintf("%s came as %s", from.name, a))
		}
	}
	return strange
}

func addresses(list []netip.Addr) string {
	texts := make([]string, len(list))
	for i, a := range list {
		texts[i] = a.String()
	}
	return strings.Join(texts, ", ")
}

// addresses gives all addresses of a host.
func (h host) addresses() ([]netip.Addr, error) {
	var found []netip.Addr
	err := h.ns.Do(func() error {
		all, err := net.InterfaceAddrs()
		if err != nil {
			return fmt.Errorf("list the addresses of %s: %w", h.name, err)
		}
		for _, a := range all {
			p, err := netip.ParsePrefix(a.String())
			if err != nil {
				return fmt.Errorf("list the addresses of %s: %w", h.name, err)
			}
			found = append(found, p.Addr())
		}
		return nil
	})
	return found, err
}

// links gives the names of a host's links.
func (h host) links() ([]string, error) {
	var names []string
	err := h.ns.Do(func() error {
		all, err := net.Interfaces()
		if err != nil {
			return fmt.Errorf("list the links of %s: %w", h.name, err)
		}
		for _, l := range all {
			names = append(names, l.Name)
		}
		return nil
	})
	slices.Sort(names)
	return names, err
}
