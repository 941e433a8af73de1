package plugin

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
)

// A request is one call of the plugin: the environment's part, and stdin.
type request struct {
	container string
	ifName    string
	netns     string // a path, may be empty for DEL
	args      string
	override  bool // the pod's namespace may be the plugin's own
	stdin     []byte
}

// request reads and validates the environment. All missing variables are
// reported together.
func (p Process) request(needs []string) (request, error) {
	var missing []string
	for _, name := range needs {
		if p.Getenv(name) == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return request{}, failure(types.ErrInvalidEnvironmentVariables, nil, "required environment variables missing: %s", strings.Join(missing, ", "))
	}
	override := p.Getenv("CNI_NETNS_OVERRIDE")
	req := request{
		container: p.Getenv("CNI_CONTAINERID"),
		ifName:    p.Getenv("CNI_IFNAME"),
		netns:     p.Getenv("CNI_NETNS"),
		args:      p.Getenv("CNI_ARGS"),
		override:  override == "1" || strings.EqualFold(override, "true"),
	}
	for _, name := range needs {
		var err error
		switch name {
		case "CNI_CONTAINERID":
			err = validateContainer(req.container)
		case "CNI_IFNAME":
			err = validateIfName(req.ifName)
		}
		if err != nil {
			return request{}, err
		}
	}
	return req, nil
}

func validateContainer(id string) error {
	if err := utils.ValidateContainerID(id); err != nil {
		return failure(types.ErrInvalidEnvironmentVariables, nil, "CNI_CONTAINERID %q: %s", id, err.Msg)
	}
	return nil
}

func validateIfName(name string) error {
	if err := utils.ValidateInterfaceName(name); err != nil {
		return failure(types.ErrInvalidEnvironmentVariables, nil, "CNI_IFNAME %q: %s", name, err.Msg)
	}
	switch {
	case name == "all" || name == "default":
		// The kernel keeps these two for the sysctls of every device.
		return failure(types.ErrInvalidEnvironmentVariables, nil, "CNI_IFNAME %q: reserved by the kernel", name)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		// It could not stand in the result.
		return failure(types.ErrInvalidEnvironmentVariables, nil, "CNI_IFNAME %q: not printable text", name)
	}
	return nil
}

// openNetns opens the pod's namespace and refuses the plugin's own, before
// anything was done. It does something there, to see that it can be entered.
func (r request) openNetns(do func() error) (*namespace, error) {
	if err := r.refuseOwnNetns(); err != nil {
		return nil, err
	}
	pod, err := openNamespace(r.netns)
	if err != nil {
		return nil, failure(types.ErrInvalidNetNS, err, "open CNI_NETNS %q", r.netns)
	}
	if err := pod.do(do); err != nil {
		pod.close()
		return nil, failure(types.ErrInvalidNetNS, err, "enter CNI_NETNS %q", r.netns)
	}
	return pod, nil
}

// refuseOwnNetns fails when CNI_NETNS is the namespace that the plugin runs in.
// A path that can't be read is no answer: openNetns tells, and DEL does not mind.
func (r request) refuseOwnNetns() error {
	if r.override || r.netns == "" {
		return nil
	}
	theirs, err := os.Stat(r.netns)
	if err != nil {
		return nil
	}
	own, err := os.Stat(ownNamespace)
	if err != nil {
		return failure(types.ErrInvalidNetNS, err, "read the plugin's own namespace")
	}
	if os.SameFile(own, theirs) {
		return failure(types.ErrInvalidNetNS, nil, "CNI_NETNS %q is the plugin's own namespace", r.netns)
	}
	return nil
}

// arguments are the keys of CNI_ARGS that the plugin obeys.
type arguments struct {
	ip  netip.Addr       // invalid: none asked for
	mac net.HardwareAddr // nil: none asked for
}

// parseArguments reads CNI_ARGS, K=V;K=V. Kubernetes' own keys are known and
// need nothing done; others are errors unless IgnoreUnknown says otherwise.
func parseArguments(s string) (arguments, error) {
	var a arguments
	if s == "" {
		return a, nil
	}
	var unknown []string
	ignore := types.UnmarshallableBool(false)
	for pair := range strings.SplitSeq(s, ";") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || strings.Contains(value, "=") {
			return a, badArguments(pair, errors.New("not KEY=VALUE"))
		}
		var err error
		switch {
		case key == "IgnoreUnknown":
			err = ignore.UnmarshalText([]byte(value))
		case key == "IP":
			a.ip, err = parseAddr(value)
		case key == "MAC":
			a.mac, err = parseMAC(value)
		case !strings.HasPrefix(key, "K8S_"):
			unknown = append(unknown, key)
		}
		if err != nil {
			return a, badArguments(pair, err)
		}
	}
	if len(unknown) > 0 && !bool(ignore) {
		return a, failure(types.ErrInvalidEnvironmentVariables, nil, "CNI_ARGS: unknown keys %s (IgnoreUnknown=1 accepts them)", strings.Join(unknown, ", "))
	}
	return a, nil
}

func badArguments(pair string, err error) error {
	return failure(types.ErrInvalidEnvironmentVariables, err, "CNI_ARGS: %q", pair)
}

// parseAddr reads an address, with or without a prefix length: runtimes write
// both, and ours are always whole addresses.
func parseAddr(s string) (netip.Addr, error) {
	bare, _, hasLength := strings.Cut(s, "/")
	addr, err := netip.ParseAddr(bare)
	if err == nil && hasLength {
		_, err = netip.ParsePrefix(s)
	}
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	return addr.Unmap(), nil
}

// parseMAC reads a MAC that an Ethernet device can have.
func parseMAC(s string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("%q is not an Ethernet MAC", s)
	}
	if mac[0]&1 == 1 || mac.String() == "00:00:00:00:00:00" {
		return nil, fmt.Errorf("%q is not the MAC of one device", s)
	}
	return mac, nil
}
