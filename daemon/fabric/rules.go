package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"onerule/daemon/fabric/layout"
	"onerule/daemon/rtnl"
)

// The kernel's own rules, beside the one for its local table, which nothing deletes by the
// way. Others spare what has the kernel's protocol.
const (
	mainPriority    = 32766
	defaultPriority = 32767
)

// addRules puts back what the kernel has from the start. IPv6 has no default table.
func (k *kernel) addRules(ipv6 bool) error {
	if ipv6 {
		return k.addRule(unix.AF_INET6, mainPriority, unix.RT_TABLE_MAIN)
	}
	return errors.Join(
		k.addRule(unix.AF_INET, mainPriority, unix.RT_TABLE_MAIN),
		k.addRule(unix.AF_INET, defaultPriority, unix.RT_TABLE_DEFAULT))
}

func (k *kernel) addRule(family, priority, table int) error {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Protocol = family, priority, table, unix.RTPROT_KERNEL
	if err := k.handle.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// missingRules gives what is to be done for all packets to be looked up in the main table,
// where routes to pods and nodes are. Wherever a rule for that stands among others, it is as
// somebody wants it.
func (k *kernel) missingRules(self layout.Node) ([]layout.Change, error) {
	var changes []layout.Change
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		ipv6 := family == unix.AF_INET6
		if !speaks(self, ipv6) {
			continue
		}
		header := &nl.RtMsg{}
		header.Family = family
		msgs, err := k.dump(unix.RTM_GETRULE, unix.RTM_NEWRULE, header)
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read rules: %w", err)
		}
		if !slices.ContainsFunc(msgs, func(m []byte) bool { r, ok := parseRule(m); return ok && r.leads() }) {
			changes = append(changes, layout.Change{Kind: layout.KindRule, IPv6: ipv6})
		}
	}
	return changes, nil
}

// speaks says whether a node has addresses, or pods have, of a family.
func speaks(n layout.Node, ipv6 bool) bool {
	return slices.ContainsFunc(n.Addrs, func(a netip.Addr) bool { return a.Is6() == ipv6 }) ||
		slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() == ipv6 })
}

// A ruleMessage is a rule as the kernel tells it.
type ruleMessage struct {
	table uint32
	dst   netip.Prefix
	all   bool // packets ask the table, whatever they are like
	not   bool // what is said of packets is turned round
	// elsewhere says that packets are meant which a node does not send by itself, or that
	// are unlike those whose ways are asked for.
	elsewhere bool
}

// leads says whether all that comes to a rule is looked up in the main table.
func (r ruleMessage) leads() bool { return r.all && r.table == unix.RT_TABLE_MAIN }

func parseRule(m []byte) (ruleMessage, bool) {
	const invert = 2               // FIB_RULE_INVERT
	if len(m) < unix.SizeofRtMsg { // struct fib_rule_hdr is laid out as that of routes
		return ruleMessage{}, false
	}
	h := nl.DeserializeRtMsg(m)
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofRtMsg:])
	if err != nil || h.Family != unix.AF_INET && h.Family != unix.AF_INET6 {
		return ruleMessage{}, false
	}
	r := ruleMessage{table: uint32(h.Table), not: h.Flags&invert != 0}
	r.all = h.Type == unix.FR_ACT_TO_TBL && h.Dst_len == 0 && h.Src_len == 0 && h.Tos == 0 && !r.not
	r.elsewhere = h.Src_len > 0
	dst := netip.IPv4Unspecified()
	if h.Family == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.FRA_PRIORITY, unix.FRA_PROTOCOL, unix.FRA_FLOW:
		case unix.FRA_TABLE:
			r.table = nl.NativeEndian().Uint32(a.Value)
		case unix.FRA_SUPPRESS_PREFIXLEN:
			r.all = r.all && nl.NativeEndian().Uint32(a.Value) == ^uint32(0)
		case unix.FRA_DST:
			dst = addrOf(a.Value)
		case unix.FRA_FWMARK:
			r.all, r.elsewhere = false, r.elsewhere || nl.NativeEndian().Uint32(a.Value) != 0
		case unix.FRA_IIFNAME:
			r.all, r.elsewhere = false, r.elsewhere || strings.TrimRight(string(a.Value), "\x00") != "lo"
		default: // a rule that is like no other chooses among packets
			r.all = false
		}
	}
	r.dst = netip.PrefixFrom(dst, int(h.Dst_len))
	return r, r.dst.IsValid()
}

// suspectRule looks for what does not lead to the main table any more, and at what leads
// elsewhere.
func suspectRule(m rtnl.Message, b belief) suspicion {
	r, ok := parseRule(m.Data)
	if !ok {
		return suspicion{}
	}
	return suspicion{
		rules: m.Kind == unix.RTM_DELRULE && r.leads(),
		facts: r.not || !r.elsewhere && b.asked.concern(r.dst),
	}
}

// mendRules puts back the rule without which no route of ours counts. It comes before
// everything else: without it no way is found.
func (w *worker) mendRules(self layout.Node) error {
	if !w.doubt.rules {
		return nil
	}
	changes, err := w.kernel.missingRules(self)
	if err != nil {
		return err
	}
	if w.begun && len(changes) > 0 {
		w.foreign(changes)
	}
	for _, c := range changes {
		w.doubt.facts = true
		if err := w.kernel.apply(c); err != nil {
			return err
		}
	}
	w.doubt.rules = false
	return nil
}
