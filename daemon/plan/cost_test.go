package plan_test

import (
	"fmt"
	"net/netip"
	"testing"

	"onerule/daemon/model"
	"onerule/daemon/plan"
)

// A change of one endpoint costs what its Service does, however many Services there
// are: what is allocated for it is the measure.
func TestR1ACostThatDoesNotDependOnOtherServices(t *testing.T) {
	cost := func(services int) float64 {
		l, changes := crowded(services)
		i := 0
		return testing.AllocsPerRun(200, func() {
			l.Apply(changes[i%2 : i%2+1])
			i++
		})
	}
	few, many := cost(100), cost(3000)
	if few != many {
		t.Errorf("a change allocates %v times with 100 Services and %v times with 3,000, want the same", few, many)
	}
}

// Another address or zone of the node costs only what depends on it.
func TestACostOfTheNodeThatDoesNotDependOnOtherServices(t *testing.T) {
	cost := func(services int) float64 {
		l, _ := crowded(services)
		changes := []model.Change{node("n1", "z1", "192.0.2.1"), node("n1", "z2", "192.0.2.2")}
		i := 0
		return testing.AllocsPerRun(20, func() {
			l.Apply(changes[i%2 : i%2+1])
			i++
		})
	}
	few, many := cost(100), cost(3000)
	if few != many {
		t.Errorf("a change allocates %v times with 100 Services and %v times with 3,000, want the same", few, many)
	}
}

// What is told of a change does not grow with how many Services claim the same: those
// who had lost before are not looked at.
func TestACostThatDoesNotDependOnLosers(t *testing.T) {
	cost := func(claimants int) float64 {
		l := plan.NewLedger(plan.Config{NodeName: "n1"})
		for i := range claimants {
			l.Apply([]model.Change{service(fmt.Sprint("s", i), int64(i), "10.96.0.1", 80)})
		}
		changes := []model.Change{endpointsOf("s0-1", "s0", 80, "10.0.0.1"), endpointsOf("s0-1", "s0", 80, "10.0.0.2")}
		i := 0
		return testing.AllocsPerRun(200, func() {
			l.Apply(changes[i%2 : i%2+1])
			i++
		})
	}
	few, many := cost(2), cost(500)
	if few != many {
		t.Errorf("a change allocates %v times with 2 claimants and %v times with 500, want the same", few, many)
	}
}

func BenchmarkOneEndpoint(b *testing.B) {
	for _, services := range []int{1000, 30000} {
		b.Run(fmt.Sprint(services, " services"), func(b *testing.B) {
			l, changes := crowded(services)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				l.Apply(changes[i%2 : i%2+1])
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, services := range []int{1000, 30000} {
		b.Run(fmt.Sprint(services, " services"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				crowded(services)
			}
		})
	}
}

// crowded gives a ledger with Services of three frontends and ten endpoints each, and two
// changes to and fro of one endpoint.
func crowded(services int) (*plan.Ledger, []model.Change) {
	l := plan.NewLedger(plan.Config{NodeName: "n1"})
	var all []model.Change
	for i := range services {
		c := service(fmt.Sprint("s", i), 1, "10.96.0.1", 80)
		c.Service.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}
		c.Service.LoadBalancerIPs = []netip.Addr{netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})}
		c.Service.Ports[0].NodePort = uint16(30000 + i)
		all = append(all, c, tenEndpoints(i, 0))
	}
	l.Apply(all)
	return l, []model.Change{tenEndpoints(0, 1), tenEndpoints(0, 0)}
}

// tenEndpoints gives those of a Service, the last one another for another variant.
func tenEndpoints(i, variant int) model.Change {
	c := endpointsOf(fmt.Sprint("s", i, "-1"), fmt.Sprint("s", i), 80)
	for j := range 10 {
		last := byte(j)
		if j == 9 {
			last += byte(variant)
		}
		e := ready("10.0.0.1")
		e.Addr, e.Node = netip.AddrFrom4([4]byte{10, 1 + byte(i>>8), byte(i), last}), fmt.Sprint("n", j)
		c.EndpointSlice.Endpoints = append(c.EndpointSlice.Endpoints, e)
	}
	return c
}
