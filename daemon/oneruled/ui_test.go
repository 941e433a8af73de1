package main

import (
	"testing"

	"onerule/daemon/config"
	"onerule/daemon/metrics"
)

func TestWhoWantsNoMetricsOfServicesGetsNoPageOfThem(t *testing.T) {
	for level, want := range map[metrics.EndpointMetrics]bool{
		metrics.NoEndpointMetrics: false, metrics.ServiceMetrics: true, metrics.EachEndpoint: true,
	} {
		j := job{Settings: config.Settings{EndpointMetrics: string(level)}}
		if got := j.ui(nil) != nil; got != want {
			t.Errorf("--endpoint-metrics=%s: a page %t, want %t", level, got, want)
		}
	}
}
