package layout

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
)

// A Kind tells what a change is of.
type Kind uint8

// The kinds, in the order in which they are set: each needs those before it.
const (
	KindRule Kind = iota
	KindSetting
	KindDevice
	KindDeviceSetting
	KindAddress
	KindEntry
	KindNeighbour
	KindRoute
)

// A Change is one operation. Of the rest, what the kind needs is filled in.
type Change struct {
	Kind   Kind
	Delete bool

	IPv6    bool // the rule
	Device  Device
	Address netip.Addr
	MAC     MAC
	Remote  netip.Addr
	Route   Route
	Setting string
	Value   string
}

// OnDevice says whether a change needs the VXLAN device.
func (c Change) OnDevice() bool {
	switch c.Kind {
	case KindRule, KindSetting, KindDevice:
		return false
	case KindRoute:
		return c.Route.Link == 0 && !c.Route.Refuses()
	}
	return true
}

// Words gives the words for kinds of changes by others, for counters.
func Words() []string {
	return []string{"rule", "route", "neighbour", "forwarding entry", "address", "link", "forwarding", "rp_filter", "accept_ra", "sysctl"}
}

// Word gives what a change is of, as Words has it.
func (c Change) Word() string {
	switch c.Kind {
	case KindRule:
		return "rule"
	case KindDevice:
		return "link"
	case KindAddress:
		return "address"
	case KindEntry:
		return "forwarding entry"
	case KindNeighbour:
		return "neighbour"
	case KindRoute:
		return "route"
	}
	switch name := path.Base(c.Setting); name {
	case "ip_forward", "forwarding":
		return "forwarding"
	case "rp_filter", "accept_ra":
		return name
	}
	return "sysctl"
}

func (c Change) String() string {
	verb := "set "
	if c.Delete {
		verb = "delete "
	}
	what := c.Word() + " "
	switch c.Kind {
	case KindRule:
		family := "IPv4"
		if c.IPv6 {
			family = "IPv6"
		}
		return verb + what + "by which " + family + " asks the main table"
	case KindDevice:
		if c.Delete {
			return verb + what + DeviceName
		}
		return verb + what + c.Device.String()
	case KindAddress:
		return verb + what + c.Address.String()
	case KindEntry:
		return fmt.Sprintf("%s%s%s at %s", verb, what, c.MAC, c.Remote)
	case KindNeighbour:
		return fmt.Sprintf("%s%s%s at %s", verb, what, c.Address, c.MAC)
	case KindRoute:
		return verb + what + c.Route.String()
	}
	return fmt.Sprintf("%s%s to %s", verb, c.Setting, c.Value)
}

// Diff gives what makes have into want, in an order in which no packet that has a way
// loses it: first all that is wanted, from the device up to the routes, then what is
// not goes, from the routes down.
func Diff(have, want State) []Change {
	d := differ{have: have, want: want}
	d.settings()
	d.device()
	addresses(&d)
	entries(&d)
	neighbours(&d)
	routes(&d)
	slices.SortStableFunc(d.sets, func(a, b Change) int { return cmp.Compare(a.Kind, b.Kind) })
	slices.SortStableFunc(d.deletes, func(a, b Change) int { return cmp.Compare(b.Kind, a.Kind) })
	return slices.Concat(d.first, d.sets, d.deletes)
}

type differ struct {
	have, want           State
	first, sets, deletes []Change
}

// settings orders those of the machine: a device obeys advertisements also as a router
// before it becomes one, since the kernel drops what it learned from them otherwise.
func (d *differ) settings() {
	rank := func(path string) int {
		switch {
		case strings.HasSuffix(path, "/accept_ra"):
			return 0
		case strings.HasSuffix(path, "/disable_ipv6"):
			return 0
		case path == ipForward || path == ip6Forward:
			return 1
		}
		return 2
	}
	var list []Change
	for p, v := range d.want.Settings {
		if d.have.Settings[p] == v {
			continue
		}
		kind := KindSetting
		if strings.Contains(p, "/"+DeviceName+"/") {
			kind = KindDeviceSetting
		}
		list = append(list, Change{Kind: kind, Setting: p, Value: v})
	}
	slices.SortFunc(list, func(a, b Change) int {
		return cmp.Or(cmp.Compare(rank(a.Setting), rank(b.Setting)), cmp.Compare(a.Setting, b.Setting))
	})
	d.sets = append(d.sets, list...)
}

// device also forgets what goes with a device that goes, and the neighbours of one
// whose MAC changes: the kernel drops them, permanent ones too.
func (d *differ) device() {
	have, want := d.have.Device, d.want.Device
	switch {
	case want == nil && have != nil:
		d.deletes = append(d.deletes, Change{Kind: KindDevice, Delete: true})
		d.have = d.have.withoutDevice(d.want)
	case want != nil && have != nil && !have.same(*want):
		d.first = append(d.first, Change{Kind: KindDevice, Delete: true})
		d.have = d.have.withoutDevice(State{})
		d.sets = append(d.sets, Change{Kind: KindDevice, Device: *want})
		d.resettle()
	case want != nil && (have == nil || *have != *want):
		d.sets = append(d.sets, Change{Kind: KindDevice, Device: *want})
		if have == nil {
			d.resettle()
		} else if have.MAC != want.MAC {
			d.have.Neighbours = nil
		}
	}
}

// resettle sets the settings of a new device, whatever those of the old one were.
func (d *differ) resettle() {
	d.sets = slices.DeleteFunc(d.sets, func(c Change) bool { return c.Kind == KindDeviceSetting })
	for _, p := range sortedKeys(d.want.Settings, strings.Compare) {
		if strings.Contains(p, "/"+DeviceName+"/") {
			d.sets = append(d.sets, Change{Kind: KindDeviceSetting, Setting: p, Value: d.want.Settings[p]})
		}
	}
}

// withoutDevice gives what is left when the device goes. Its routes go with it, except
// those that are replaced before.
func (s State) withoutDevice(want State) State {
	s = s.Clone()
	s.Device = nil
	s.Addresses, s.Entries, s.Neighbours = nil, nil, nil
	for place, r := range s.Routes {
		if _, replaced := want.Routes[place]; r.Link == 0 && !r.Refuses() && !replaced {
			delete(s.Routes, place)
		}
	}
	return s
}

func addresses(d *differ) {
	sets, deletes := compare(d.have.Addresses, d.want.Addresses, netip.Addr.Compare)
	for _, a := range sets {
		d.sets = append(d.sets, Change{Kind: KindAddress, Address: a})
	}
	for _, a := range deletes {
		d.deletes = append(d.deletes, Change{Kind: KindAddress, Delete: true, Address: a})
	}
}

func entries(d *differ) {
	sets, deletes := compare(d.have.Entries, d.want.Entries, compareMAC)
	for _, m := range sets {
		d.sets = append(d.sets, Change{Kind: KindEntry, MAC: m, Remote: d.want.Entries[m]})
	}
	for _, m := range deletes {
		d.deletes = append(d.deletes, Change{Kind: KindEntry, Delete: true, MAC: m, Remote: d.have.Entries[m]})
	}
}

func neighbours(d *differ) {
	sets, deletes := compare(d.have.Neighbours, d.want.Neighbours, netip.Addr.Compare)
	for _, a := range sets {
		d.sets = append(d.sets, Change{Kind: KindNeighbour, Address: a, MAC: d.want.Neighbours[a]})
	}
	for _, a := range deletes {
		d.deletes = append(d.deletes, Change{Kind: KindNeighbour, Delete: true, Address: a, MAC: d.have.Neighbours[a]})
	}
}

func routes(d *differ) {
	sets, deletes := compare(d.have.Routes, d.want.Routes, comparePlace)
	for _, p := range sets {
		d.sets = append(d.sets, Change{Kind: KindRoute, Route: d.want.Routes[p]})
	}
	for _, p := range deletes {
		d.deletes = append(d.deletes, Change{Kind: KindRoute, Delete: true, Route: d.have.Routes[p]})
	}
}

// compare gives the keys of what is wanted and not so, and of what is not wanted.
func compare[K, V comparable](have, want map[K]V, order func(a, b K) int) (sets, deletes []K) {
	for _, k := range sortedKeys(want, order) {
		if v, ok := have[k]; !ok || v != want[k] {
			sets = append(sets, k)
		}
	}
	for _, k := range sortedKeys(have, order) {
		if _, ok := want[k]; !ok {
			deletes = append(deletes, k)
		}
	}
	return sets, deletes
}

func sortedKeys[K comparable, V any](m map[K]V, order func(a, b K) int) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, order)
	return keys
}

func compareMAC(a, b MAC) int { return slices.Compare(a[:], b[:]) }

func comparePlace(a, b Place) int {
	return cmp.Or(a.Dst.Addr().Compare(b.Dst.Addr()), cmp.Compare(a.Dst.Bits(), b.Dst.Bits()), cmp.Compare(a.Metric, b.Metric))
}

// Apply gives what a state is after a change.
func (s State) Apply(c Change) State {
	switch c.Kind {
	case KindSetting, KindDeviceSetting:
		s.Settings[c.Setting] = c.Value
	case KindDevice:
		return s.applyDevice(c)
	case KindAddress:
		put(s.Addresses, c.Delete, c.Address, true)
	case KindEntry:
		put(s.Entries, c.Delete, c.MAC, c.Remote)
	case KindNeighbour:
		put(s.Neighbours, c.Delete, c.Address, c.MAC)
	case KindRoute:
		put(s.Routes, c.Delete, c.Route.Place, c.Route)
	}
	return s
}

func put[K comparable, V any](m map[K]V, remove bool, k K, v V) {
	if remove {
		delete(m, k)
	} else {
		m[k] = v
	}
}

func (s State) applyDevice(c Change) State {
	if !c.Delete {
		if s.Device != nil && s.Device.MAC != c.Device.MAC {
			s.Neighbours = map[netip.Addr]MAC{}
		}
		s.Device = &c.Device
		return s
	}
	left := s.withoutDevice(State{})
	left.Addresses, left.Entries, left.Neighbours = map[netip.Addr]bool{}, map[MAC]netip.Addr{}, map[netip.Addr]MAC{}
	left.ForgetLink(DeviceName)
	return left
}
