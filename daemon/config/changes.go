package config

import (
	"reflect"
	"slices"
	"strings"

	"k8s.io/kube-proxy/config/v1alpha1"
)

// Changes are the differences between two Settings, named as the fields of the file,
// sorted.
type Changes struct {
	// Live can be applied to a running daemon.
	Live []string
	// Restart can't: who runs the daemon is to start it again.
	Restart []string
}

// Empty says whether nothing has changed.
func (c Changes) Empty() bool { return len(c.Live) == 0 && len(c.Restart) == 0 }

// Compare gives what has changed between two settings of a daemon. What has no effect
// here is no change.
func Compare(old, changed Settings) Changes {
	var c Changes
	for _, aspect := range aspects() {
		if reflect.DeepEqual(aspect.of(old), aspect.of(changed)) {
			continue
		}
		if aspect.live {
			c.Live = append(c.Live, aspect.field)
			continue
		}
		c.Restart = append(c.Restart, aspect.field)
	}
	slices.Sort(c.Live)
	slices.Sort(c.Restart)
	return c
}

// An aspect is a part of settings that is compared as a whole.
type aspect struct {
	field string
	live  bool
	of    func(Settings) any
}

func aspects() []aspect {
	return append(restartAspects(), liveAspects()...)
}

// liveAspects are what the rules, the kernel's settings and the servers are made
// from: each can be made again.
func liveAspects() []aspect {
	of := func(field string, of func(Settings) any) aspect { return aspect{field, true, of} }
	return []aspect{
		of("bindAddressHardFail", func(s Settings) any { return s.BindAddressHardFail }),
		of("clusterCIDR", func(s Settings) any { return s.ClusterCIDRs }),
		of("conntrack", func(s Settings) any { return s.Conntrack }),
		of("detectLocal", func(s Settings) any { return s.Detector.Interface }),
		of("detectLocalMode", func(s Settings) any { return s.Detector.Mode }),
		of("enableProfiling", func(s Settings) any { return s.Profiling }),
		of("healthzBindAddress", func(s Settings) any { return s.Healthz }),
		of("logging.verbosity", func(s Settings) any { return s.Config.Logging.Verbosity }),
		of("masqueradeAll", func(s Settings) any { return s.MasqueradeAll }),
		of("masqueradeBit", func(s Settings) any { return s.MasqueradeBit }),
		of("metricsBindAddress", func(s Settings) any { return s.Metrics }),
		of("minSyncPeriod", func(s Settings) any { return s.MinSyncPeriod }),
		of("nodePortAddresses", func(s Settings) any { return s.NodePortAddresses }),
		of("oomScoreAdj", func(s Settings) any { return s.OOMScoreAdj }),
		of("syncPeriod", func(s Settings) any { return s.SyncPeriod }),
	}
}

// restartAspects are what everything else begins with: whom the daemon speaks to, for
// which node, and what the process set up once.
func restartAspects() []aspect {
	of := func(field string, of func(Settings) any) aspect { return aspect{field, false, of} }
	return []aspect{
		of("bindAddress", func(s Settings) any { return s.BindAddress }),
		of("clientConnection", func(s Settings) any { return s.Client }),
		of("featureGates", func(s Settings) any { return s.Gates }),
		of("hostnameOverride", func(s Settings) any { return s.Node }),
		of("logging.flushFrequency", func(s Settings) any { return s.Config.Logging.FlushFrequency.Duration }),
		of("logging.format", func(s Settings) any { return s.Config.Logging.Format }),
		of("logging.options", func(s Settings) any { return loggingOptions(s.Config) }),
		of("logging.vmodule", func(s Settings) any { return s.Config.Logging.VModule }),
	}
}

// loggingOptions gives the options in a form that can be compared: two quantities can
// be the same and differ in what they remember.
func loggingOptions(c *v1alpha1.KubeProxyConfiguration) any {
	o := c.Logging.Options
	return []any{
		o.Text.SplitStream, o.Text.InfoBufferSize.Value(),
		o.JSON.SplitStream, o.JSON.InfoBufferSize.Value(),
	}
}

// String names the fields.
func (c Changes) String() string {
	return strings.Join(slices.Concat(c.Live, c.Restart), ", ")
}
