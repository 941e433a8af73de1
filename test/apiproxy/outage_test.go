package apiproxy_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"onerule/test/rig"
)

// The way to the API server swallows every packet: no connection is closed, and a watch
// would never end by itself. The daemon asks whether it is still there, notices that it
// is not, says so, serves what it knows meanwhile, and learns what has changed when
// packets pass again. Its usual patience is 45 s.
func testSilentOutage(t *testing.T, c *cluster) {
	c.d.Stop()
	c.d.Env("HTTP2_READ_IDLE_TIMEOUT_SECONDS=1", "HTTP2_PING_TIMEOUT_SECONDS=1")
	c.d.Run()
	c.d.AwaitHealthy()
	c.create(t, 1)
	c.answers(t, "it answers", 1)
	said := len(c.d.Log())
	stop := c.traffic(t.Context())
	c.h.Outside.Run(t, "nft", `table inet outage {
		chain i { type filter hook input priority 0; iifname eth0 tcp dport 6443 drop; };
		chain o { type filter hook output priority 0; oifname eth0 tcp sport 6443 drop; };
	}`)
	c.endpoints(t, 2)
	rig.Eventually(t, "the daemon says which watches are lost", func() error {
		log := c.d.Log()[said:]
		for _, resource := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
			if !strings.Contains(log, "reflector="+strconv.Quote(resource)) {
				return fmt.Errorf("nothing of %s in %s", resource, log)
			}
		}
		return nil
	})
	lost := func() float64 { return c.d.Metric("onerule_api_lost_seconds") }
	rig.Eventually(t, "a metric says for how long", func() error {
		if s := lost(); s < 1 {
			return fmt.Errorf("the API server is lost for %v s", s)
		}
		return nil
	})
	connects, err := stop()
	if err != nil || connects < 100 {
		t.Errorf("%d connects during the outage, want 100 or more, and no failure: %v", connects, err)
	}
	c.h.Outside.Run(t, "nft", "delete table inet outage")
	c.answers(t, "what was changed meanwhile arrives", 2)
	rig.Eventually(t, "the metric says that it is over", func() error {
		if s := lost(); s != 0 {
			return fmt.Errorf("the API server is lost for %v s", s)
		}
		return nil
	})
	c.remove(t)
}
