package plugin

import (
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// result says what was made, after what prevResult held: an earlier plugin's
// entries stay and keep their places.
func (w *wire) result(c *config, netns string) *types100.Result {
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	if c.prev != nil {
		r.Interfaces, r.IPs, r.Routes, r.DNS = c.prev.Interfaces, c.prev.IPs, c.prev.Routes, c.prev.DNS
	}
	r.Interfaces = append(r.Interfaces,
		&types100.Interface{Name: w.key.hostLink(), Mac: w.hostMAC.String(), Mtu: w.mtu},
		&types100.Interface{Name: w.key.ifName, Mac: w.podMAC.String(), Mtu: w.mtu, Sandbox: netns})
	for _, a := range w.addrs {
		r.IPs = append(r.IPs, &types100.IPConfig{
			Interface: types100.Int(len(r.Interfaces) - 1),
			Address:   *ipNet(a),
			Gateway:   gateway(familyOf(a)).AsSlice(),
		})
	}
	for _, route := range w.routes {
		p := anywhere(route.family)
		out := &types.Route{
			Dst: net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(0, int(route.family))},
			GW:  gateway(route.family).AsSlice(),
		}
		if route.table != 0 {
			out.Table = &route.table
		}
		r.Routes = append(r.Routes, out)
	}
	if !c.dns.IsEmpty() {
		r.DNS = c.dns
	}
	return r
}

// printResult prints in the version of the configuration.
func (p Process) printResult(c *config, w *wire, netns string) error {
	r := w.result(c, netns)
	if older, err := version.GreaterThan(types100.ImplementedSpecVersion, c.cniVersion); err == nil && older {
		dropNewFields(r)
	}
	converted, err := r.GetAsVersion(c.cniVersion)
	if err != nil {
		return failure(types.ErrInternal, err, "convert the result to version %s", c.cniVersion)
	}
	return p.print(converted)
}

// dropNewFields takes out what 1.1.0 brought, since the library does not. A route
// outside the main table can't be told apart without its table, so it goes whole.
func dropNewFields(r *types100.Result) {
	var interfaces []*types100.Interface
	for _, i := range r.Interfaces {
		interfaces = append(interfaces, &types100.Interface{Name: i.Name, Mac: i.Mac, Sandbox: i.Sandbox})
	}
	var routes []*types.Route
	for _, route := range r.Routes {
		if route.Table == nil {
			routes = append(routes, &types.Route{Dst: route.Dst, GW: route.GW})
		}
	}
	r.Interfaces, r.Routes = interfaces, routes
}
