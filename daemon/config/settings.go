// Package config says how the daemon is configured: kube-proxy's flags and its
// KubeProxyConfiguration file are read, completed with defaults, checked, and given
// as one value, Settings. The file is watched, and a changed one gives new Settings.
package config

import (
	"net/netip"
	"slices"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"

	"onerule/daemon/fabric/layout"
)

// Settings is what the daemon is asked to be.
type Settings struct {
	// Node is the name of the Node object, trimmed and in lower case.
	Node string
	// BindAddress overrides the primary IP of the node; the zero value: it is taken
	// from the Node object.
	BindAddress netip.Addr
	// Manifests is the directory that objects are read from, instead of the API
	// server that Client says; empty: none.
	Manifests string
	Client    Client
	Detector  Detector
	// ClusterCIDRs holds one range of pods for each family at most, masked. They tell
	// pods in the mode ClusterCIDR only.
	ClusterCIDRs      []netip.Prefix
	NodePortAddresses NodePortAddresses
	MasqueradeAll     bool
	MasqueradeBit     uint8 // of the packet mark, 0 to 31
	// SyncPeriod is how long a failed sync waits at most, and half of what a change
	// may be pending for until the daemon is unhealthy. MinSyncPeriod lies between two
	// syncs and is at most SyncPeriod.
	SyncPeriod, MinSyncPeriod time.Duration
	// Healthz and Metrics are addresses with ports; Healthz is empty if it is off.
	Healthz, Metrics string
	// BindAddressHardFail ends the daemon when an address is taken.
	BindAddressHardFail bool
	Profiling           bool
	Conntrack           Conntrack
	OOMScoreAdj         int // -1000 to 1000
	// ExternalIPs says whether spec.externalIPs are served.
	ExternalIPs bool
	// ExternalIPCIDRs are the ranges that spec.externalIPs must lie in; nil: any.
	ExternalIPCIDRs []netip.Prefix
	// RejectWithoutLocalEndpoints rejects what a Local policy without local endpoints
	// would drop.
	RejectWithoutLocalEndpoints bool
	// ResetRemovedEndpoints forgets TCP connections to endpoints that are in no slice.
	ResetRemovedEndpoints bool
	// BPFDir is where counters of connections are pinned; AutoBPFDir and NoBPF are no
	// directories.
	BPFDir string
	// SysctlDir is below which settings of the kernel are written, in net.
	SysctlDir string
	// EndpointMetrics says what there are metrics of connections for: off, service or
	// endpoint.
	EndpointMetrics string
	PodNetwork      PodNetwork
	// Gates has the value of every feature gate.
	Gates map[string]bool
	// Config is the whole configuration, with defaults and with what flags say, as
	// /configz shows it. It is not to be changed.
	Config *v1alpha1.KubeProxyConfiguration
	// Warnings are lines to be logged: what is accepted and has another effect than
	// it may seem to have.
	Warnings []string
}

// A PodNetwork says how this node's pods reach others.
type PodNetwork struct {
	On bool
	// Layout is how nodes reach each other's pods.
	Layout layout.Config
	// NonMasquerade are ranges that pods reach with their own address, beside the ranges
	// of pods.
	NonMasquerade []netip.Prefix
	// CNIState is the folder that the CNI plugin keeps its networks in.
	CNIState string
	// StatusFile is where the daemon tells the plugin what it knows; empty: nowhere.
	StatusFile string
	// Install says how the plugin is installed, if this process does it.
	Install InstallCNI
}

// An InstallCNI says where the CNI plugin is to be.
type InstallCNI struct {
	On              bool
	Plugin          string // the file of it; empty: beside this program
	BinDir, ConfDir string
	EtcDir          string // below which others are told to leave links of pods alone; empty: nowhere
	Exclusive       bool   // lists of others are set aside
	MTU             int    // of pods; 0: the plugin's choice
}

// A Client says how to reach the API server.
type Client struct {
	// Kubeconfig is a file, Master an address that overrides that of the file. Without
	// both, the service account of the pod is used.
	Kubeconfig, Master string
	// ContentType is empty for the default: protobuf, and JSON from a server that has
	// nothing else. AcceptContentTypes is empty for whatever goes with it.
	ContentType, AcceptContentTypes string
	QPS                             float32 // 0: the library's default
	Burst                           int     // 0: the library's default
}

// A Detector says how traffic of pods on this node is told.
type Detector struct {
	Mode LocalMode
	// Interface is a name for the mode BridgeInterface, and what names begin with for
	// InterfaceNamePrefix; empty for the others.
	Interface string
}

// A LocalMode is a way to tell traffic of pods.
type LocalMode string

// The ways to tell traffic of pods.
const (
	ClusterCIDR         LocalMode = "ClusterCIDR"
	NodeCIDR            LocalMode = "NodeCIDR"
	BridgeInterface     LocalMode = "BridgeInterface"
	InterfaceNamePrefix LocalMode = "InterfaceNamePrefix"
)

// Conntrack holds the kernel's settings for connection tracking. Limits and timeouts
// of 0 leave what the kernel has.
type Conntrack struct {
	// MaxPerCore times the number of CPUs is how many entries there may be; Min is the
	// least of that.
	MaxPerCore, Min              int
	TCPEstablishedTimeout        time.Duration
	TCPCloseWaitTimeout          time.Duration
	TCPBeLiberal                 bool
	UDPTimeout, UDPStreamTimeout time.Duration
}

// A Family is an IP family: 4 or 6.
type Family uint8

// The families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String gives Kubernetes' word for the family.
func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

func (f Family) other() Family { return IPv4 + IPv6 - f }

// Bits is the length of an address.
func (f Family) bits() int {
	if f == IPv6 {
		return 128
	}
	return 32
}

func (f Family) unspecified() netip.Addr {
	if f == IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

func familyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// ofFamily gives the prefixes of a family.
func ofFamily(f Family, prefixes []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return familyOf(p.Addr()) != f })
}
