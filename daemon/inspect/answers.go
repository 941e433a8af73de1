// Package inspect answers people who ask a running daemon what it does: the answers as
// values, the words in them, and the Unix socket that they come through. It decides
// nothing, and changes nothing.
package inspect

import (
	"net/netip"
	"time"
)

// A Status is what a daemon and its tables are like.
type Status struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Node    string    `json:"node"`
	Mode    string    `json:"mode"`
	Source  string    `json:"source"` // where objects come from
	Kernel  string    `json:"kernel"`
	Nft     string    `json:"nft"`
	Started time.Time `json:"started"`
	// Loaded is when all tables were first loaded; nil: they were not.
	Loaded     *time.Time `json:"loaded,omitempty"`
	LastChange *Change    `json:"lastChange,omitempty"`
	// PendingSeconds is the age of the oldest change that is not in the kernel.
	PendingSeconds float64 `json:"pendingSeconds"`
	Services       int     `json:"services"`
	Frontends      int     `json:"frontends"`
	// Counting says how connections are counted, "" for not at all.
	Counting string  `json:"counting"`
	Tables   []Table `json:"tables"`
	// PodNetwork is set if the daemon connects pods.
	PodNetwork *PodNetwork `json:"podNetwork,omitempty"`
	// Degraded says what is not as it should be, and why.
	Degraded []string `json:"degraded"`
}

// A PodNetwork is what connects this node's pods.
type PodNetwork struct {
	Ranges []string `json:"ranges"` // of this node's pods
	Peers  int      `json:"peers"`  // other nodes
	// Routed are ranges of their pods that a route to the node leads to, Tunnelled those
	// that are reached by VXLAN.
	Routed    int `json:"routed"`
	Tunnelled int `json:"vxlan"`
	// Served says that pods may begin.
	Served bool `json:"served"`
	// List is what the container runtime is told of the plugin, where the daemon installs
	// it: published, or not published yet.
	List string `json:"list,omitempty"`
}

// A Change is one that was brought into the kernel.
type Change struct {
	At      time.Time `json:"at"`
	Objects int       `json:"objects"`
	Seconds float64   `json:"seconds"` // from when the first of them came in
}

// A Table is what one family's table holds.
type Table struct {
	Family   string `json:"family"`
	Name     string `json:"name"`
	Known    bool   `json:"known"` // false: a load is due
	Rules    int    `json:"rules"`
	Elements int    `json:"elements"`
	// Load is the last time that the whole table was compared with the kernel.
	Load *Load `json:"load,omitempty"`
	// Sets have something in them.
	Sets []Set `json:"sets"`
}

// A Load is how a table was loaded.
type Load struct {
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"`
}

// A Set is the number of elements of a set or map.
type Set struct {
	Name     string `json:"name"`
	Elements int    `json:"elements"`
}

// Hits are what was counted, at one time.
type Hits struct {
	At time.Time `json:"at"`
	// Off says why nothing is counted, or known of it yet; empty: it is.
	Off  string `json:"off,omitempty"`
	Hits []Hit  `json:"hits"`
}

// A Hit is the number of connections that an endpoint of a service port was given.
// Without an endpoint it is about all that are gone.
type Hit struct {
	Namespace   string `json:"namespace"`
	Service     string `json:"service"`
	Port        string `json:"port"`
	Protocol    string `json:"protocol"`
	Endpoint    string `json:"endpoint"`
	Connections uint64 `json:"connections"`
}

// A Service is a Service and what is decided about it.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// AffinitySeconds is how long a client that is idle stays with its endpoint.
	AffinitySeconds uint32     `json:"affinitySeconds,omitempty"`
	Frontends       []Frontend `json:"frontends"`
	Ports           []Port     `json:"ports"`
	// Notes say what of it is skipped, and why.
	Notes []string `json:"notes,omitempty"`
}

// A Frontend is where clients send, and what they get.
type Frontend struct {
	Kind string `json:"kind"` // ClusterIP, ExternalIP, LoadBalancerIP, NodePort
	// Address is empty for a NodePort.
	Address  string `json:"address,omitempty"`
	Family   string `json:"family"`
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"`
	PortName string `json:"portName,omitempty"`
	Policy   string `json:"policy"` // Cluster or Local
	// Endpoints are those that new connections are spread over; of the policy Local,
	// LocalEndpoints those for who is not in the cluster.
	Endpoints      []string `json:"endpoints"`
	LocalEndpoints []string `json:"localEndpoints,omitempty"`
	// Guarded says that only sources in Sources are let in.
	Guarded bool     `json:"guarded,omitempty"`
	Sources []string `json:"sources,omitempty"`
	// Answer is balance, refuse, or drop; Reason says why it is not all endpoints.
	Answer string `json:"answer"`
	Reason string `json:"reason,omitempty"`
}

// A Port is a service port and all endpoints that there are for it.
type Port struct {
	Name      string     `json:"name,omitempty"`
	Protocol  string     `json:"protocol"`
	Port      uint16     `json:"port"`
	NodePort  uint16     `json:"nodePort,omitempty"`
	Endpoints []Endpoint `json:"endpoints"`
}

// An Endpoint is one, and what is known of it.
type Endpoint struct {
	Address string `json:"address"`
	Node    string `json:"node,omitempty"`
	Here    bool   `json:"here"` // on this node
	State   string `json:"state"`
}

// A Query asks what becomes of a packet.
type Query struct {
	// From is where it comes from; the zero value: this node sends it, from the address
	// that the kernel chooses.
	From netip.Addr
	// In is the interface that it comes in by; empty: that by which the kernel would
	// answer.
	In       string
	To       netip.AddrPort
	Protocol string // TCP, UDP or SCTP
}

// An Explanation says what becomes of a packet, and why.
type Explanation struct {
	From     string `json:"from"`
	Origin   string `json:"origin"` // where that is, in words
	In       string `json:"in,omitempty"`
	To       string `json:"to"`
	Protocol string `json:"protocol"`
	// Table has the rules that are asked.
	Table   string  `json:"table"`
	Stages  []Stage `json:"stages"`
	Verdict string  `json:"verdict"`
	Reason  string  `json:"reason"`
	Service string  `json:"service,omitempty"`
	Port    string  `json:"port,omitempty"`
	Kind    string  `json:"kind,omitempty"`
	// HostPort names the pod whose port of this node it is, by container and interface.
	HostPort string   `json:"hostPort,omitempty"`
	Reached  []Target `json:"reached"`
	// Wrong says what of the table is not as this daemon writes it.
	Wrong []string `json:"wrong,omitempty"`
	// Differs are the elements that the kernel should hold and does not (add), or the other
	// way round (delete); Wanted is what would become of the packet with them.
	Differs []string `json:"differs,omitempty"`
	Wanted  string   `json:"wanted,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

// A Stage is one look-up, or one decision, on the way.
type Stage struct {
	Chain string `json:"chain"`
	Found string `json:"found"`
	Then  string `json:"then"`
}

// A Target is an endpoint that a packet may reach.
type Target struct {
	Endpoint
	// Masqueraded says that the endpoint sees an address of this node, not the sender's.
	Masqueraded bool `json:"masqueraded"`
}

// A Diff is what a daemon would change in the kernel.
type Diff struct {
	// Against is what the tables are compared with.
	Against string      `json:"against"`
	Tables  []TableDiff `json:"tables"`
	// Skipped are objects, or parts of such, that are left out, and why.
	Skipped []string `json:"skipped,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

// Empty says whether it would change nothing.
func (d Diff) Empty() bool {
	for _, t := range d.Tables {
		if !t.Empty() {
			return false
		}
	}
	return true
}

// A TableDiff is what would change in one table.
type TableDiff struct {
	Table string `json:"table"`
	// Rules say what would be done besides elements.
	Rules   []string `json:"rules,omitempty"`
	Add     int      `json:"add"`
	Delete  int      `json:"delete"`
	Changes []Line   `json:"changes,omitempty"`
}

// Empty says whether nothing would change.
func (d TableDiff) Empty() bool { return len(d.Rules) == 0 && d.Add == 0 && d.Delete == 0 }

// A Line is an element that would come (+) or go (-).
type Line struct {
	Sign    string `json:"sign"`
	Set     string `json:"set"`
	Element string `json:"element"`
}
