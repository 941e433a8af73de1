package daemon

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"onerule/bpf"
	"onerule/daemon/inspect"
	"onerule/daemon/model"
	"onerule/test/netns"
)

// crowded is a node with more endpoints, one of each Service, than its map of counters has
// room for.
type crowded struct {
	*Daemon
	ns *netns.NS
}

const crowd = 20

func newCrowded(t *testing.T, room uint32) crowded {
	t.Helper()
	ns := netns.New(t, "node")
	ns.Run(t, "ip", "route", "add", "default", "dev", "lo") // the kernel asks for one before it translates
	var c *bpf.Counters
	var l net.Listener
	err := ns.Do(func() (err error) {
		if c, err = bpf.Open(bpf.Options{Size: room, Log: logr.Discard()}); err != nil {
			return err
		}
		t.Cleanup(func() { _ = c.Close() })
		l, err = net.Listen("tcp4", ":8080")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, conn.LocalAddr().String())
			_ = conn.Close()
		}
	}()
	d := crowded{newDaemon(t, ns), ns}
	d.tally.use(c, nil)
	for n := range crowd {
		ns.Run(t, "ip", "address", "add", d.endpoint(n).Addr().String()+"/32", "dev", "lo")
		d.put(n)
	}
	d.Synced()
	d.bringIn(t)
	return d
}

func (d crowded) name(n int) model.Name {
	return model.Name{Namespace: "ns", Name: fmt.Sprint("web", n)}
}

func (d crowded) vip(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(n + 1)}), 80)
}

func (d crowded) endpoint(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n + 1)}), 8080)
}

func (d crowded) put(n int) {
	name := d.name(n)
	d.Changed(model.Change{Key: model.Key{Kind: model.KindService, Name: name}, Service: &model.Service{
		Name: name, ClusterIPs: []netip.Addr{d.vip(n).Addr()}, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
	}})
	d.Changed(model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: name}, EndpointSlice: &model.EndpointSlice{
		Name: name, Service: name.Name, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}},
		Endpoints: []model.Endpoint{{Addr: d.endpoint(n).Addr(), Ready: true, Serving: true}},
	}})
}

// drop takes all endpoints of a Service away, and the Service.
func (d crowded) drop(n int) {
	d.Changed(model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: d.name(n)}})
	d.Changed(model.Change{Key: model.Key{Kind: model.KindService, Name: d.name(n)}})
}

// bringIn does what the loop does, and what is done beside it.
func (d crowded) bringIn(t *testing.T) {
	t.Helper()
	if err := d.ns.Do(func() error { return d.sync(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	d.tally.all(t)
}

// connect visits Services, each of which has to answer by its endpoint.
func (d crowded) connect(t *testing.T, list []int) {
	t.Helper()
	for _, n := range list {
		err := d.ns.Do(func() error {
			conn, err := net.DialTimeout("tcp", d.vip(n).String(), 5*time.Second)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			if got, err := io.ReadAll(conn); string(got) != d.endpoint(n).String() {
				return fmt.Errorf("%s is answered by %q, %w", d.vip(n), got, err)
			}
			return nil
		})
		if err != nil {
			t.Errorf("a connection to Service %d: %v", n, err)
		}
	}
}

// counts says which Services are counted, and how many connections of all.
func (d crowded) counts(t *testing.T) (services []int, connections uint64) {
	t.Helper()
	hits := hitsOf(t, d.tally)
	for n := range crowd {
		if of, ok := hits[d.name(n).Name+" "+d.endpoint(n).String()]; ok {
			services, connections = append(services, n), connections+of
		}
	}
	return services, connections
}

func (d crowded) says(t *testing.T, when string, full float64) {
	t.Helper()
	if got := sample(t, d.Daemon, "onerule_bpf_full"); got != full {
		t.Errorf("%s: onerule_bpf_full is %v, want %v", when, got, full)
	}
	var s inspect.Status
	d.degraded(&s)
	said := slices.ContainsFunc(s.Degraded, func(line string) bool { return strings.Contains(line, "the map of counters is full") })
	if said != (full == 1) {
		t.Errorf("%s: the status says that the map is full: %t: %q", when, said, s.Degraded)
	}
}

// A map of counters that is full stops no connection: those that have no room are not
// counted, which is said, until there is room.
func TestAFullMapStopsNoConnection(t *testing.T) {
	const room = 10
	d := newCrowded(t, room)
	var all []int
	for n := range crowd {
		all = append(all, n)
	}
	d.connect(t, all)
	counted, connections := d.counts(t)
	if len(counted) != room || connections != room {
		t.Errorf("%d of %d Services are counted, %d connections, want one of each that there is room for", len(counted), crowd, connections)
	}
	d.says(t, "full", 1)

	for _, n := range counted {
		d.drop(n)
	}
	d.bringIn(t)
	d.says(t, "with room again", 0)
	left := slices.DeleteFunc(slices.Clone(all), func(n int) bool { return slices.Contains(counted, n) })
	d.connect(t, left)
	now, connections := d.counts(t)
	if !slices.Equal(now, left) || connections != uint64(len(left)) {
		t.Errorf("counted are %v with %d connections, want %v with one each", now, connections, left)
	}
}
