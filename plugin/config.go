package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"onerule/nft/hostport"
)

const (
	defaultDataDir     = "/var/lib/cni/onerule"
	defaultLockTimeout = 10 * time.Second
	// defaultQuarantine is longer than it takes all nodes to forget an endpoint, as a
	// rule.
	defaultQuarantine = 5 * time.Second
	minMTU            = 68   // RFC 791: what every IPv4 module forwards
	minMTU6           = 1280 // RFC 8200: below it the kernel turns IPv6 off
	maxMTU            = 65535
)

// A base is the part of the configuration that every verb needs. DEL reads no
// more than this, so that it works with a configuration whose rest is broken.
type base struct {
	cniVersion  string
	network     string
	dataDir     string
	lockTimeout time.Duration
	adopt       string // a directory of host-local's reservations, or empty
}

// A config is the configuration of an ADD, with what the runtime asked for in
// other places (capabilities, args, CNI_ARGS) merged in.
type config struct {
	base
	mtu        int // 0: that of the uplink
	dns        types.DNS
	mac        net.HardwareAddr // nil: derived
	ranges     []rangeSet
	quarantine time.Duration // of an address that was released
	ips        []netip.Addr  // asked for
	ports      []hostport.Mapping
	prev       *types100.Result
}

// input is stdin as JSON; other keys are for others.
type input struct {
	types.PluginConf
	DataDir       string     `json:"dataDir"`
	LockTimeout   string     `json:"lockTimeout"`
	Quarantine    string     `json:"quarantine"`
	MTU           int        `json:"mtu"`
	IPAM          *ipamInput `json:"ipam"`
	RuntimeConfig struct {
		MAC      string         `json:"mac"`
		IPs      []*string      `json:"ips"`
		IPRanges [][]rangeInput `json:"ipRanges"`
		// Ports are decoded apart: a bad one is named as what it is.
		Ports json.RawMessage `json:"portMappings"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []*string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
}

func parseBase(stdin []byte) (base, error) {
	var in struct {
		CNIVersion  string `json:"cniVersion"`
		Name        string `json:"name"`
		DataDir     string `json:"dataDir"`
		LockTimeout string `json:"lockTimeout"`
		Adopt       string `json:"adopt"`
	}
	if err := json.Unmarshal(stdin, &in); err != nil {
		return base{}, failure(types.ErrDecodingFailure, err, "decode the network configuration")
	}
	if err := utils.ValidateNetworkName(in.Name); err != nil {
		return base{}, failure(types.ErrInvalidNetworkConfig, nil, "name %q: %s", in.Name, strings.TrimSuffix(err.Msg, ":"))
	}
	b := base{cniVersion: in.CNIVersion, network: in.Name, dataDir: defaultDataDir, lockTimeout: defaultLockTimeout}
	if in.DataDir != "" {
		b.dataDir = filepath.Clean(in.DataDir)
	}
	if !filepath.IsAbs(b.dataDir) {
		return base{}, badConfig("dataDir", in.DataDir, errors.New("not an absolute path"))
	}
	if in.Adopt != "" && !filepath.IsAbs(in.Adopt) {
		return base{}, badConfig("adopt", in.Adopt, errors.New("not an absolute path"))
	}
	b.adopt = in.Adopt
	if in.LockTimeout != "" {
		d, err := time.ParseDuration(in.LockTimeout)
		if err != nil || d <= 0 {
			return base{}, badConfig("lockTimeout", in.LockTimeout, errors.New(`not a positive duration such as "10s"`))
		}
		b.lockTimeout = d
	}
	return b, nil
}

// parseConfig reads the configuration of an ADD and validates all of it.
func parseConfig(stdin []byte, cniArgs string) (config, error) {
	b, err := parseBase(stdin)
	if err != nil {
		return config{}, err
	}
	var in input
	if err := json.Unmarshal(stdin, &in); err != nil {
		return config{}, failure(types.ErrDecodingFailure, err, "decode the network configuration")
	}
	c := config{base: b, mtu: in.MTU, dns: in.DNS}
	args, err := parseArguments(cniArgs)
	if err != nil {
		return config{}, err
	}
	c.mac = args.mac
	if in.RuntimeConfig.MAC != "" {
		if c.mac, err = parseMAC(in.RuntimeConfig.MAC); err != nil {
			return config{}, badConfig("runtimeConfig.mac", in.RuntimeConfig.MAC, err)
		}
	}
	if c.ips, err = in.requestedIPs(args.ip); err != nil {
		return config{}, err
	}
	if c.quarantine, err = in.quarantine(); err != nil {
		return config{}, err
	}
	if err := in.refuseUnsupported(); err != nil {
		return config{}, err
	}
	if c.ranges, err = in.IPAM.rangeSets(in.RuntimeConfig.IPRanges); err != nil {
		return config{}, failure(types.ErrInvalidNetworkConfig, err, "ipam")
	}
	if err := c.validateMTU(); err != nil {
		return config{}, err
	}
	if c.ports, err = c.parsePorts(in.RuntimeConfig.Ports); err != nil {
		return config{}, err
	}
	c.prev, err = parsePrevResult(&in.PluginConf)
	return c, err
}

// requestedIPs collects the addresses that were asked for in all three ways.
func (in *input) requestedIPs(fromArgs netip.Addr) ([]netip.Addr, error) {
	var ips []netip.Addr
	if fromArgs.IsValid() {
		ips = append(ips, fromArgs)
	}
	for _, from := range []struct {
		field string
		texts []*string
	}{{"args.cni.ips", in.Args.CNI.IPs}, {"runtimeConfig.ips", in.RuntimeConfig.IPs}} {
		for i, text := range from.texts {
			field := fmt.Sprintf("%s[%d]", from.field, i)
			if text == nil {
				return nil, badConfig(field, "null", errors.New("not an IP address"))
			}
			ip, err := parseAddr(*text)
			if err != nil {
				return nil, badConfig(field, *text, err)
			}
			ips = append(ips, ip)
		}
	}
	return ips, nil
}

func (in *input) quarantine() (time.Duration, error) {
	if in.Quarantine == "" {
		return defaultQuarantine, nil
	}
	d, err := time.ParseDuration(in.Quarantine)
	if err != nil || d < 0 {
		return 0, badConfig("quarantine", in.Quarantine, errors.New(`not a duration such as "5s"`))
	}
	return d, nil
}

// refuseUnsupported names what other IPAM plugins would obey and this one would
// pass over in silence.
func (in *input) refuseUnsupported() error {
	if in.IPAM == nil {
		return nil // rangeSets says it
	}
	if t := in.IPAM.Type; t != "" && t != "host-local" {
		return unsupported("ipam.type", t, `addresses come from "ipam": {"ranges": [...]}, of type "host-local" or none`)
	}
	if in.IPAM.DataDir != "" {
		return unsupported("ipam.dataDir", in.IPAM.DataDir, "use dataDir beside type")
	}
	if in.IPAM.ResolvConf != "" {
		return unsupported("ipam.resolvConf", in.IPAM.ResolvConf, "use dns beside type")
	}
	for i, r := range in.IPAM.Routes {
		// Without a gateway the pod's default routes cover it.
		if r != nil && (r.GW != nil || r.MTU != 0 || r.AdvMSS != 0 || r.Priority != 0 || r.Table != nil || r.Scope != nil) {
			return unsupported(fmt.Sprintf("ipam.routes[%d]", i), r.Dst.String(), "a pod has one way out, its default routes")
		}
	}
	return nil
}

func (c *config) validateMTU() error {
	lowest := minMTU
	if c.hasIPv6() {
		lowest = minMTU6
	}
	if c.mtu != 0 && (c.mtu < lowest || c.mtu > maxMTU) {
		return badConfig("mtu", fmt.Sprint(c.mtu), fmt.Errorf("not 0 or %d to %d", lowest, maxMTU))
	}
	return nil
}

func (c *config) hasIPv6() bool {
	for _, set := range c.ranges {
		if familyOf(set[0].first) == ipv6 {
			return true
		}
	}
	return false
}

// parsePrevResult gives nil when there is none.
func parsePrevResult(conf *types.PluginConf) (*types100.Result, error) {
	if conf.RawPrevResult == nil {
		return nil, nil
	}
	if err := version.ParsePrevResult(conf); err != nil {
		return nil, failure(types.ErrInvalidNetworkConfig, err, "prevResult")
	}
	r, err := types100.NewResultFromResult(conf.PrevResult)
	if err != nil {
		return nil, failure(types.ErrInvalidNetworkConfig, err, "prevResult")
	}
	return r, nil
}

func badConfig(field, value string, err error) error {
	return failure(types.ErrInvalidNetworkConfig, err, "%s %q", field, value)
}

func unsupported(field, value, hint string) error {
	return failure(types.ErrUnsupportedField, errors.New(hint), "unsupported %s %q", field, value)
}
