package layout

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
)

// A State is what the kernel holds, or should hold, of ours.
type State struct {
	Device     *Device // nil: none
	Addresses  map[netip.Addr]bool
	Entries    map[MAC]netip.Addr // forwarding entries: from a device's MAC to its node
	Neighbours map[netip.Addr]MAC // on the device
	Routes     map[Place]Route
	// Settings are sysctls, by the path below /proc/sys/net.
	Settings map[string]string
}

// NewState gives an empty one.
func NewState() State {
	return State{
		Addresses:  map[netip.Addr]bool{},
		Entries:    map[MAC]netip.Addr{},
		Neighbours: map[netip.Addr]MAC{},
		Routes:     map[Place]Route{},
		Settings:   map[string]string{},
	}
}

// Clone gives a copy that shares nothing.
func (s State) Clone() State {
	if s.Device != nil {
		d := *s.Device
		s.Device = &d
	}
	s.Addresses, s.Entries, s.Neighbours = maps.Clone(s.Addresses), maps.Clone(s.Entries), maps.Clone(s.Neighbours)
	s.Routes, s.Settings = maps.Clone(s.Routes), maps.Clone(s.Settings)
	return s
}

// ForgetLink takes out the settings of a device that went: another of its name has others.
func (s State) ForgetLink(name string) {
	maps.DeleteFunc(s.Settings, func(path, _ string) bool { return strings.Contains(path, "/"+name+"/") })
}

// A Device is the VXLAN device.
type Device struct {
	MAC             MAC
	MTU             int
	Up              bool
	ChecksumOffload bool
	// What follows can't be changed in a device that is there.
	Local     netip.Addr // the node's address that packets are sent from
	VNI, Port int
	Learning  bool // from packets: never wanted, since anybody can send some
}

// same says whether what can't be changed is as wanted.
func (d Device) same(want Device) bool {
	return d.Local == want.Local && d.VNI == want.VNI && d.Port == want.Port && d.Learning == want.Learning
}

func (d Device) String() string {
	return fmt.Sprintf("%s vni %d port %d local %s mtu %d mac %s", DeviceName, d.VNI, d.Port, d.Local, d.MTU, d.MAC)
}

// A Place is where a route stands: a write replaces what is in it.
type Place struct {
	Dst    netip.Prefix
	Metric uint32
}

// A Route is the way to a range of pods.
type Route struct {
	Place
	Via netip.Addr // not valid: packets are refused, with an ICMP error
	// Link is the index of the device; 0: the VXLAN device.
	Link int
	MTU  int // 0: that of the device
}

// Refuses says that the range can't be reached. Without such a route, what is sent to
// it would leave by the default route, masqueraded as if it went out of the cluster.
func (r Route) Refuses() bool { return !r.Via.IsValid() }

// placed gives a route the place that one of its kind has.
func (r Route) placed() Route {
	r.Metric = Metric
	if r.Refuses() && !r.Dst.Addr().Is4() {
		r.Metric = Weakest
	}
	return r
}

func (r Route) String() string {
	switch {
	case r.Refuses():
		return fmt.Sprintf("unreachable %s", r.Dst)
	case r.Link == 0:
		return fmt.Sprintf("%s via %s dev %s mtu %d", r.Dst, r.Via, DeviceName, r.MTU)
	}
	return fmt.Sprintf("%s via %s link %d mtu %d", r.Dst, r.Via, r.Link, r.MTU)
}
