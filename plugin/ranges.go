package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
)

// What ipam holds is what host-local reads. Its own parser is not used: with all that it
// imports, a tenth of an ADD was the loading of it. A test holds both together.
type (
	ipamInput struct {
		rangeInput                // one range without a list, as it was in the beginning
		Type       string         `json:"type"`
		DataDir    string         `json:"dataDir"`
		ResolvConf string         `json:"resolvConf"`
		Routes     []*types.Route `json:"routes"`
		Ranges     [][]rangeInput `json:"ranges"`
	}
	rangeInput struct {
		Subnet     string `json:"subnet"`
		RangeStart string `json:"rangeStart"`
		RangeEnd   string `json:"rangeEnd"`
		Gateway    string `json:"gateway"`
	}
)

// rangesInput is the part of stdin that gives ranges.
type rangesInput struct {
	IPAM          *ipamInput `json:"ipam"`
	RuntimeConfig struct {
		IPRanges [][]rangeInput `json:"ipRanges"`
	} `json:"runtimeConfig"`
}

// parseRanges reads and validates all ranges.
func parseRanges(stdin []byte) ([]rangeSet, error) {
	var in rangesInput
	if err := json.Unmarshal(stdin, &in); err != nil {
		return nil, failure(types.ErrInvalidNetworkConfig, err, "ipam")
	}
	sets, err := in.IPAM.rangeSets(in.RuntimeConfig.IPRanges)
	if err != nil {
		return nil, failure(types.ErrInvalidNetworkConfig, err, "ipam")
	}
	return sets, nil
}

// rangeSets puts those first that the runtime asks for, then the one without a list.
func (in *ipamInput) rangeSets(asked [][]rangeInput) ([]rangeSet, error) {
	if in == nil {
		return nil, errors.New("there is none")
	}
	all := append([][]rangeInput{}, asked...)
	if in.Subnet != "" {
		all = append(all, []rangeInput{in.rangeInput})
	}
	all = append(all, in.Ranges...)
	if len(all) == 0 {
		return nil, errors.New("no IP ranges are given")
	}
	var sets []rangeSet
	for i, inputs := range all {
		set, err := readRangeSet(inputs)
		if err != nil {
			return nil, fmt.Errorf("set %d of ranges: %w", i, err)
		}
		for j, other := range sets {
			if set.overlaps(other) {
				return nil, fmt.Errorf("sets %d and %d of ranges overlap", j, i)
			}
		}
		sets = append(sets, set)
	}
	return sets, nil
}

// readRangeSet wants ranges of one family that have no address in common.
func readRangeSet(inputs []rangeInput) (rangeSet, error) {
	if len(inputs) == 0 {
		return nil, errors.New("it is empty")
	}
	var set rangeSet
	for _, in := range inputs {
		s, err := in.span()
		if err != nil {
			return nil, err
		}
		if len(set) > 0 && familyOf(s.first) != familyOf(set[0].first) {
			return nil, errors.New("both IP families are in it")
		}
		if set.overlaps(rangeSet{s}) {
			return nil, fmt.Errorf("%s and %s overlap", set, rangeSet{s})
		}
		set = append(set, s)
	}
	return set, nil
}

// span fills in what is not said: the gateway is the first address, and the last one is
// that before the broadcast address, which IPv6 does not have.
func (in rangeInput) span() (span, error) {
	subnet, err := in.subnet()
	if err != nil {
		return span{}, err
	}
	s := span{first: subnet.Addr().Next(), last: lastOf(subnet), gateway: subnet.Addr().Next()}
	for _, given := range []struct {
		name, text string
		to         *netip.Addr
	}{{"rangeStart", in.RangeStart, &s.first}, {"rangeEnd", in.RangeEnd, &s.last}, {"gateway", in.Gateway, &s.gateway}} {
		if given.text == "" {
			continue
		}
		a, err := netip.ParseAddr(given.text)
		if err != nil || a.Zone() != "" {
			return span{}, fmt.Errorf("%s %q is not an IP address", given.name, given.text)
		}
		if *given.to = a.Unmap(); !subnet.Contains(*given.to) {
			return span{}, fmt.Errorf("%s %s is not in subnet %s", given.name, a, subnet)
		}
	}
	if s.last.Less(s.first) {
		return span{}, fmt.Errorf("range %s of subnet %s ends before it starts", rangeSet{s}, subnet)
	}
	return s, nil
}

// subnet refuses one without an address to give, and the address of a host in the place of
// a subnet's: it may be a slip.
func (in rangeInput) subnet() (netip.Prefix, error) {
	subnet, err := netip.ParsePrefix(in.Subnet)
	switch {
	case err != nil:
		return subnet, fmt.Errorf("subnet %q is none: %w", in.Subnet, err)
	case subnet.Addr().Is4In6():
		return subnet, fmt.Errorf("subnet %s is of two families", subnet)
	case subnet != subnet.Masked():
		return subnet, fmt.Errorf("subnet %s has host bits set: is it %s?", subnet, subnet.Masked())
	case subnet.Bits() > subnet.Addr().BitLen()-2:
		return subnet, fmt.Errorf("subnet %s is too small", subnet)
	}
	return subnet, nil
}

// lastOf gives the last address that a pod can have.
func lastOf(subnet netip.Prefix) netip.Addr {
	b := subnet.Addr().AsSlice()
	for i := range b {
		b[i] |= byte(0xff >> min(max(subnet.Bits()-8*i, 0), 8))
	}
	last, _ := netip.AddrFromSlice(b)
	if last.Is4() {
		last = last.Prev()
	}
	return last
}

// overlaps says whether two sets have an address in common.
func (set rangeSet) overlaps(other rangeSet) bool {
	for _, a := range set {
		for _, b := range other {
			if familyOf(a.first) == familyOf(b.first) && !b.last.Less(a.first) && !a.last.Less(b.first) {
				return true
			}
		}
	}
	return false
}
