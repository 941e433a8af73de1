package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
)

// podsScene wires three pods and lets each reach each other.
func podsScene(ctx context.Context, s *screen, w *world) error {
	s.scene("Three pods, wired by the CNI plugin")
	s.say("A node and a host outside are two network namespaces with a wire between them. For each " +
		"pod the plugin is called as a container runtime calls it: the verb and the pod's namespace " +
		"in the environment, and this network on stdin.")
	s.file("CNI_COMMAND=ADD CNI_CONTAINERID=pod-a CNI_IFNAME=eth0 CNI_NETNS=... bin/onerule", w.network())
	rows := [][]string{{"pod", "IPv4", "IPv6", "ADD took"}}
	for _, name := range []string{"pod-a", "pod-b", "pod-c"} {
		p, err := w.addPod(name)
		if err != nil {
			return err
		}
		stop, err := p.serve(podPort)
		if err != nil {
			return err
		}
		w.onClose(func() error { stop(); return nil })
		w.pods = append(w.pods, p)
		rows = append(rows, []string{name, p.addrs["IPv4"].String(), p.addrs["IPv6"].String(), figures(p.took)})
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	s.table(rows...)
	if err := podToPod(ctx, s, w); err != nil {
		return err
	}
	return leavesTheNode(ctx, s, w)
}

// podToPod makes requests between the pods, without any Service.
func podToPod(ctx context.Context, s *screen, w *world) error {
	made, good := 0, 0
	var wrong []string
	for _, f := range families() {
		for _, from := range w.pods {
			for _, to := range w.pods {
				if from.name == to.name {
					continue
				}
				a, err := from.one(ctx, netip.AddrPortFrom(to.addrs[f.name], podPort), patience)
				if err != nil {
					return err
				}
				made++
				if a.err == nil && a.pod == to.name && a.seen == from.addrs[f.name] {
					good++
				} else {
					wrong = append(wrong, fmt.Sprintf("from %s to %s over %s: answer of %q to %s, %v", from.name, to.name, f.name, a.pod, a.seen, a.err))
				}
			}
		}
	}
	s.claim(good == made, "pod to pod, both families: %d of %d requests reached the right pod, which saw the sender's own address%s",
		good, made, listed(wrong))
	return nil
}

// leavesTheNode shows where an address of a Service goes while nobody translates
// it: what the daemon does later is then known to be its doing.
func leavesTheNode(ctx context.Context, s *screen, w *world) error {
	var wrong []string
	for _, f := range families() {
		a, err := w.pods[2].one(ctx, netip.AddrPortFrom(f.unallocated(), servicePort), patience)
		if err != nil {
			return err
		}
		if a.pod != w.outside.name {
			wrong = append(wrong, fmt.Sprintf("%s: answer of %q, %v", f.unallocated(), a.pod, a.err))
		}
	}
	s.claim(len(wrong) == 0, "nobody translates Services yet: a request to %s, out of the range of ClusterIPs, leaves the node and is answered outside%s",
		families()[0].unallocated(), listed(wrong))
	return nil
}

// listed gives what went wrong as the end of a sentence.
func listed(wrong []string) string {
	if len(wrong) == 0 {
		return ""
	}
	return " (but " + strings.Join(wrong, "; ") + ")"
}

// partingScene gives back what the plugin made.
func partingScene(_ context.Context, s *screen, w *world) error {
	s.scene("The pods go")
	for _, p := range w.pods {
		if _, err := w.callPlugin("DEL", p.host); err != nil {
			return err
		}
	}
	links, err := w.node.links()
	if err != nil {
		return err
	}
	s.claim(strings.Join(links, " ") == "lo uplink", "DEL for each: the links that the node has left are %s", strings.Join(links, " and "))
	return nil
}
