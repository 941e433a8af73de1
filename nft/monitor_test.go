package nft_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/test/netns"
)

// openMonitor opens a monitor in the namespace that listens. It reads nothing yet.
func openMonitor(t *testing.T, ns *netns.NS, buffer int) *nft.Monitor {
	t.Helper()
	m := deafMonitor(t, ns, buffer)
	if alone, err := m.Listen(0); !alone || err != nil {
		t.Fatalf("listen: alone %t, %v", alone, err)
	}
	return m
}

// deafMonitor opens a monitor that does not listen yet.
func deafMonitor(t *testing.T, ns *netns.NS, buffer int) *nft.Monitor {
	t.Helper()
	var m *nft.Monitor
	do(t, ns, func() (err error) {
		m, err = nft.OpenMonitorWith(buffer)
		return err
	})
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// run lets a monitor read until the test ends.
func run(t *testing.T, m *nft.Monitor) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }() // ends with the test
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func watch(t *testing.T, ns *netns.NS) *nft.Monitor {
	t.Helper()
	m := openMonitor(t, ns, nft.EventBuffer)
	run(t, m)
	return m
}

// watched opens a table whose writes the monitor knows.
func watched(t *testing.T, ns *netns.NS, family nft.Family, m *nft.Monitor) *nft.Program {
	t.Helper()
	p := program(t, ns, config(family))
	p.WatchedBy(m)
	return p
}

// within waits until f has nothing to complain about.
func within(t *testing.T, limit time.Duration, f func() error) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("not within %s: %v", limit, err)
		case <-tick.C:
		}
	}
}

// told gives what a monitor tells when it has read everything.
func told(t *testing.T, m *nft.Monitor) []nft.Foreign {
	t.Helper()
	within(t, 20*time.Second, m.Behind)
	list := m.Take()
	select {
	case <-m.Suspect():
	default:
		if len(list) > 0 {
			t.Errorf("nobody was woken for %v", list)
		}
	}
	return list
}

func nothing(t *testing.T, m *nft.Monitor, what string) {
	t.Helper()
	if list := told(t, m); len(list) > 0 {
		t.Errorf("%s raised %v", what, list)
	}
	if windows, _ := m.Remembers(); windows != 0 {
		t.Errorf("after %s the monitor still keeps %d windows", what, windows)
	}
}

func kinds(list []nft.Foreign) []string {
	var words []string
	for _, f := range list {
		words = append(words, f.Kind.String())
	}
	return words
}

// Row 9, F3: whatever others do to a table of ours is told, and what heals it, which is
// our own, is not.
func TestMonitorTellsWhatOthersDo(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		m := watch(t, ns)
		p := watched(t, ns, family, m)
		want := world(family, 20, 3)
		want.Ranges[nft.ServiceCIDRs] = ranges(family, 16, 2)
		load(t, ns, p, copyOf(want))
		nothing(t, m, "the first load")
		words := strings.NewReplacer("$F", family.String(), "$VIP", vip(family, 3).String(), "$OTHER", vip(family, 4).String())
		for _, test := range []struct {
			name, script string
			want         []nft.Foreign
		}{
			{"flush ruleset", "flush ruleset", []nft.Foreign{{Kind: nft.TableDeleted, Count: 1}}},
			{"delete the table", "delete table $F onerule", []nft.Foreign{{Kind: nft.TableDeleted, Count: 1}}},
			{"exchange the table", "delete table $F onerule\nadd table $F onerule", []nft.Foreign{{Kind: nft.TableDeleted, Count: 1}}},
			{"flush the table", "flush table $F onerule", []nft.Foreign{{Kind: nft.RulesDeleted}}},
			{"flush a chain", "flush chain $F onerule nat-output", []nft.Foreign{{Kind: nft.RulesDeleted, Count: 1, First: "nat-output"}}},
			{"delete a chain", "flush chain $F onerule nat-output\ndelete chain $F onerule nat-output", []nft.Foreign{
				{Kind: nft.ChainsDeleted, Count: 1, First: "nat-output"}, {Kind: nft.RulesDeleted, Count: 1, First: "nat-output"},
			}},
			{"add a rule", "insert rule $F onerule services counter", []nft.Foreign{{Kind: nft.RulesAdded, Count: 1, First: "services"}}},
			{"delete an element", "delete element $F onerule service-ips { $VIP . tcp . 80 }", []nft.Foreign{{Kind: nft.ElementsDeleted, Count: 1, First: "service-ips"}}},
			{"flush a map", "flush map $F onerule service-ips", []nft.Foreign{{Kind: nft.ElementsDeleted, Count: 20, First: "service-ips"}}},
			{"add elements", "add element $F onerule no-endpoints { $VIP . tcp . 80, $OTHER . tcp . 80 }", []nft.Foreign{{Kind: nft.ElementsAdded, Count: 2, First: "no-endpoints"}}},
			{"exchange an element", "delete element $F onerule cluster-ips { $VIP }\nadd element $F onerule cluster-ips { $VIP }", []nft.Foreign{
				{Kind: nft.ElementsDeleted, Count: 1, First: "cluster-ips"}, {Kind: nft.ElementsAdded, Count: 1, First: "cluster-ips"},
			}},
			{"delete a set", "flush chain $F onerule lb-tcp\ndelete set $F onerule lb-tcp-3", []nft.Foreign{{Kind: nft.RulesDeleted, Count: 1, First: "lb-tcp"}, {Kind: nft.SetsDeleted, Count: 1, First: "lb-tcp-3"}}},
			{"a policy that drops", "add chain $F onerule nat-prerouting { policy drop; }", []nft.Foreign{{Kind: nft.OtherChange, Count: 1, First: "nat-prerouting"}}},
			{"a dormant table", "add table $F onerule { flags dormant; }", []nft.Foreign{{Kind: nft.OtherChange, Count: 1}}},
			{"add a counter", "add counter $F onerule foreign", []nft.Foreign{{Kind: nft.OtherChange, Count: 1, First: "foreign"}}},
			{"two commits", "add counter $F onerule foreign\n;;delete counter $F onerule foreign", []nft.Foreign{{Kind: nft.OtherChange, Count: 2, First: "foreign"}}},
		} {
			t.Run(test.name, func(t *testing.T) {
				for script := range strings.SplitSeq(test.script, ";;") {
					ns.Run(t, "nft", "-f", file(t, words.Replace(script)+"\n"))
				}
				got := told(t, m)
				for i := range test.want {
					test.want[i].Table, test.want[i].Family, test.want[i].By = nft.TableName, family, "nft"
					if test.want[i].Count == 0 && i < len(got) { // all of them
						test.want[i].Count, test.want[i].First = max(got[i].Count, 50), got[i].First
					}
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("told (-want +got): %s", diff)
				}
				load(t, ns, p, copyOf(want))
				nothing(t, m, "our repair")
			})
		}
	})
}

// What others do to tables of theirs is not our business, however much it is, and
// whatever their names.
func TestMonitorIgnoresForeignTables(t *testing.T) {
	ns := netns.New(t, "node")
	m := watch(t, ns)
	for _, family := range families() {
		load(t, ns, watched(t, ns, family, m), world(family, 20, 3))
	}
	ns.Run(t, "nft", "-f", file(t, `
		add table inet onerule
		add chain inet onerule services { type filter hook input priority 0; }
		add table ip onerule-guard
		add set ip onerule-guard service-ips { type ipv4_addr . inet_service; }
	`))
	for i := range 100 {
		ns.Run(t, "nft", "-f", file(t, fmt.Sprintf(`
			add element ip onerule-guard service-ips { 10.0.0.1 . %d }
			add rule inet onerule services counter
			flush chain inet onerule services
		`, i+1)))
	}
	ns.Run(t, "nft", "-f", file(t, "add set ip onerule-guard big { type inet_service . inet_service; }\nadd element ip onerule-guard big { "+pairs(50_000)+" }\n"))
	ns.Run(t, "nft", "-f", file(t, "delete table inet onerule\ndelete table ip onerule-guard\n"))
	nothing(t, m, "changes of foreign tables")
}

// pairs gives distinct elements of two ports.
func pairs(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d . %d, ", i/1000+1, i%1000+1)
	}
	return strings.TrimSuffix(b.String(), ", ")
}

// The packet path fills and empties the maps of pins by itself.
func TestMonitorIgnoresPins(t *testing.T) {
	ns := netns.New(t, "node")
	ns.Run(t, "nft", "-f", file(t, `
		table ip onerule {
			map pins-port-1 { type ipv4_addr : inet_service; flags dynamic,timeout; size 16; }
			chain out {
				type filter hook output priority 0;
				meta l4proto udp update @pins-port-1 { ip daddr timeout 50ms : 80 }
			}
		}
	`))
	m := watch(t, ns)
	pinned := func() bool {
		return strings.Contains(ns.Run(t, "nft", "list", "map", "ip", "onerule", "pins-port-1"), "expires")
	}
	within(t, 10*time.Second, func() error {
		do(t, ns, func() error {
			conn, err := net.Dial("udp", "127.0.0.1:9")
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			_, err = conn.Write([]byte("x"))
			return err
		})
		if !pinned() {
			return errors.New("the client is not pinned")
		}
		return nil
	})
	within(t, 10*time.Second, func() error {
		if pinned() {
			return errors.New("the pin has not expired")
		}
		return nil
	})
	ns.Run(t, "nft", "add element ip onerule pins-port-1 { 10.0.0.1 timeout 10s : 80 }")
	ns.Run(t, "nft", "flush map ip onerule pins-port-1")
	nothing(t, m, "pins")
}

// Commits of others fall before, between and into ours, all the time.
func TestMonitorTellsOursFromOthersInBetween(t *testing.T) {
	ns := netns.New(t, "node")
	m := watch(t, ns)
	ns.Run(t, "nft", "add table inet foreign; add chain inet foreign c")
	stop := make(chan struct{})
	var noise sync.WaitGroup
	noise.Go(func() { // ends with stop
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := ns.Output("nft", "add rule inet foreign c counter; flush chain inet foreign c"); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	defer noise.Wait()
	defer close(stop)
	programs := map[nft.Family]*nft.Program{}
	for _, family := range families() {
		programs[family] = watched(t, ns, family, m)
		load(t, ns, programs[family], world(family, 10, 3))
	}
	for i := range 12 {
		family := families()[i%2]
		p, f := programs[family], web(family, 3)
		want := world(family, 10, 3)
		balance(want, f, endpoints(family, 500, 4+i)) // a number of endpoints that is new
		if done := update(t, ns, p, frontends(f), want); done.Rulesets != 1 {
			t.Fatalf("the update did %+v, want rules for a new number of endpoints", done)
		}
		nothing(t, m, "our updates")
		ns.Run(t, "nft", fmt.Sprintf("delete element %s onerule service-ips { %s . tcp . 80 }", family, f.Addr))
		want1 := []nft.Foreign{{Table: nft.TableName, Family: family, Kind: nft.ElementsDeleted, Count: 1, First: "service-ips", By: "nft"}}
		if diff := cmp.Diff(want1, told(t, m)); diff != "" {
			t.Fatalf("told (-want +got): %s", diff)
		}
		load(t, ns, p, want)
		nothing(t, m, "our repair")
	}
}

// While an nft of ours runs, only one commit to the table is taken for its own.
func TestMonitorTellsWhatFallsIntoARunOfOurs(t *testing.T) {
	const damage, ours = "delete element ip onerule service-ips { $VIP . tcp . 80 }", "add rule ip onerule services counter"
	for name, test := range map[string]struct {
		scripts   []string
		committed bool
		want      []string
	}{
		"ours alone":                       {[]string{ours}, true, nil},
		"nothing":                          {nil, false, nil},
		"ours and one of another table":    {[]string{"add table inet foreign", ours}, true, nil},
		"ours has failed":                  {[]string{damage}, false, []string{"elements-deleted"}},
		"ours after one of others":         {[]string{damage, ours}, true, []string{"rules-added", "elements-deleted"}},
		"ours before one of others":        {[]string{ours, damage}, true, []string{"rules-added", "elements-deleted"}},
		"ours before all is gone":          {[]string{ours, "add table inet foreign", "flush ruleset"}, true, []string{"table-deleted", "table-deleted"}},
		"one of others to both tables":     {[]string{damage + "; add counter ip6 onerule foreign", ours}, true, []string{"elements-deleted", "other"}},
		"one of others to the other table": {[]string{"add counter ip6 onerule foreign", ours}, true, []string{"other"}},
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %t", name, late), func(t *testing.T) {
				ns := netns.New(t, "node")
				m := openMonitor(t, ns, nft.EventBuffer)
				if !late {
					run(t, m)
				}
				for _, family := range families() {
					load(t, ns, watched(t, ns, family, m), world(family, 10, 3))
				}
				ended := m.Expect(nft.IPv4)
				for _, script := range test.scripts {
					ns.Run(t, "nft", strings.ReplaceAll(script, "$VIP", vip(nft.IPv4, 3).String()))
				}
				if !late {
					within(t, 10*time.Second, m.Behind)
				}
				ended(test.committed)
				if late {
					run(t, m)
				}
				if diff := cmp.Diff(test.want, kinds(told(t, m))); diff != "" {
					t.Errorf("told (-want +got): %s", diff)
				}
				if windows, _ := m.Remembers(); windows != 0 {
					t.Errorf("the monitor still keeps %d windows", windows)
				}
			})
		}
	}
}

// After a failed write the elements go through another socket, which is ours too.
func TestMonitorKnowsTheSocketAfterAFailedWrite(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		m := watch(t, ns)
		p := watched(t, ns, family, m)
		want, f := world(family, 10, 3), web(family, 3)
		load(t, ns, p, copyOf(want))
		ns.Run(t, "nft", fmt.Sprintf("delete element %s onerule service-ips { %s . tcp . 80 }", family, f.Addr))
		delete(want.Routes[nft.ServiceIPs], f)
		do(t, ns, func() error {
			if err := p.Update(context.Background(), frontends(f), want); !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("deleting what others have deleted: got %w, want %w", err, unix.ENOENT)
			}
			return nil
		})
		if diff := cmp.Diff([]string{"elements-deleted"}, kinds(told(t, m))); diff != "" {
			t.Errorf("told (-want +got): %s", diff)
		}
		if done := load(t, ns, p, world(family, 10, 3)); done.Added == 0 {
			t.Errorf("the load did %+v, want elements", done)
		}
		nothing(t, m, "a load through another socket")
		if _, ports := m.Remembers(); ports != 1 {
			t.Errorf("the monitor keeps %d ports, want that of the open socket", ports)
		}
	})
}

// A full load of ours is 13 to 19 MB of events. It must not look like a loss, not even
// to a monitor that gets no time to read.
func TestMonitorLosesNothingOfAFullLoad(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		for _, held := range []bool{false, true} {
			name := map[bool]string{false: "read meanwhile", true: "read when all is over"}[held]
			t.Run(name, func(t *testing.T) {
				ns := netns.New(t, "node")
				m := openMonitor(t, ns, nft.EventBuffer)
				if !held {
					run(t, m)
				}
				p := watched(t, ns, family, m)
				if done := load(t, ns, p, world(family, 10_000, 10)); done.Added < 100_000 {
					t.Fatalf("the load did %+v, want 100,000 elements", done)
				}
				if held {
					run(t, m)
				}
				nothing(t, m, "a full load")
				ns.Run(t, "nft", fmt.Sprintf("delete element %s onerule service-ips { %s . tcp . 80 }", family, vip(family, 9000)))
				if diff := cmp.Diff([]string{"elements-deleted"}, kinds(told(t, m))); diff != "" {
					t.Errorf("told (-want +got): %s", diff)
				}
			})
		}
	})
}

// Lost events are told, although nobody can say whose they were; and after that
// everything is told as before.
func TestMonitorTellsThatEventsWereLost(t *testing.T) {
	ns := netns.New(t, "node")
	m := openMonitor(t, ns, 4096)
	load(t, ns, program(t, ns, config(nft.IPv4)), world(nft.IPv4, 10, 3))
	ns.Run(t, "nft", "-f", file(t, "add table ip foreign\nadd set ip foreign big { type inet_service . inet_service; }\nadd element ip foreign big { "+pairs(20_000)+" }\n"))
	run(t, m)
	within(t, 10*time.Second, m.Recovered)
	if diff := cmp.Diff([]nft.Foreign{{Kind: nft.Lost, Count: 2}}, m.Take()); diff != "" {
		t.Errorf("told (-want +got): %s", diff)
	}
	ns.Run(t, "nft", fmt.Sprintf("delete element ip onerule service-ips { %s . tcp . 80 }", vip(nft.IPv4, 3)))
	if diff := cmp.Diff([]string{"elements-deleted"}, kinds(told(t, m))); diff != "" {
		t.Errorf("told after the loss (-want +got): %s", diff)
	}
}

// The monitor says nothing of before its time, and wakes for what comes.
func TestMonitorKnowsNothingOfBefore(t *testing.T) {
	ns := netns.New(t, "node")
	load(t, ns, program(t, ns, config(nft.IPv4)), world(nft.IPv4, 10, 3))
	m := watch(t, ns)
	nothing(t, m, "what was there before")
	ns.Run(t, "nft", "delete table ip onerule")
	select {
	case <-m.Suspect():
	case <-time.After(10 * time.Second):
		t.Fatal("nobody was woken")
	}
	if diff := cmp.Diff([]string{"table-deleted"}, kinds(m.Take())); diff != "" {
		t.Errorf("told (-want +got): %s", diff)
	}
	if list := m.Take(); len(list) > 0 {
		t.Errorf("told twice: %v", list)
	}
}

// A monitor that begins to listen knows whether anybody but us wrote anything since it was
// opened, and of our loads it is told as little as of those that come later.
func TestMonitorListensFromTheFirstLoadOn(t *testing.T) {
	for name, others := range map[string]string{"alone": "", "with others": "add table inet foreign"} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, "node")
			m := deafMonitor(t, ns, nft.EventBuffer)
			run(t, m)
			ours := 0
			for _, family := range families() {
				ours += load(t, ns, watched(t, ns, family, m), world(family, 10, 3)).Transactions
			}
			if others != "" {
				ns.Run(t, "nft", others)
			}
			alone, err := m.Listen(ours)
			if err != nil || alone != (others == "") {
				t.Errorf("after %d commits of ours: alone %t, %v", ours, alone, err)
			}
			nothing(t, m, "what was before")
			if windows, ports := m.Remembers(); windows != 0 || ports != len(families()) {
				t.Errorf("it keeps %d windows and %d ports, want none and those of the programs", windows, ports)
			}
			ns.Run(t, "nft", "delete table ip onerule")
			if diff := cmp.Diff([]string{"table-deleted"}, kinds(told(t, m))); diff != "" {
				t.Errorf("told (-want +got): %s", diff)
			}
		})
	}
}

// A monitor that has failed goes on with another socket: it knows nothing of meanwhile, and
// everything of what comes, also which commits are ours.
func TestMonitorGoesOnAfterItHasFailed(t *testing.T) {
	for name, listening := range map[string]bool{"listening": true, "before it listens": false} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, "node")
			m := deafMonitor(t, ns, nft.EventBuffer)
			p := watched(t, ns, nft.IPv4, m)
			ours := load(t, ns, p, world(nft.IPv4, 10, 3)).Transactions
			listen := func() {
				if alone, err := m.Listen(ours); !alone || err != nil {
					t.Errorf("listen: alone %t, %v", alone, err)
				}
			}
			if listening {
				listen()
			}
			if err := errors.Join(m.Break(), m.Run(t.Context())); err == nil {
				t.Fatal("it runs without a socket")
			}
			var want []string
			if listening {
				ns.Run(t, "nft", "delete table ip onerule")
				want = []string{"lost"}
			}
			do(t, ns, m.Reopen)
			run(t, m)
			if diff := cmp.Diff(want, kinds(m.Take())); diff != "" {
				t.Errorf("told of meanwhile (-want +got): %s", diff)
			}
			if !listening {
				listen()
			}
			p.Doubt()
			load(t, ns, p, world(nft.IPv4, 10, 3))
			nothing(t, m, "our repair")
			ns.Run(t, "nft", fmt.Sprintf("delete element ip onerule service-ips { %s . tcp . 80 }", vip(nft.IPv4, 3)))
			if diff := cmp.Diff([]string{"elements-deleted"}, kinds(told(t, m))); diff != "" {
				t.Errorf("told after it (-want +got): %s", diff)
			}
		})
	}
}
