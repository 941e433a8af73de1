package nft

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"onerule/nft/inspect"
)

// A Sight is what the kernel holds, now, of all that decides about one packet.
type Sight struct {
	// Wrong says in words what is not as a daemon of this configuration writes it: no
	// table, other rules, chains that are not hooked in. Only where it is empty do the
	// rules do what Walk says.
	Wrong string
	There bool // the table is there
	// State is the part that Keys name.
	State State
	Keys  Keys
	Pins  Pins // of the sender
	// Odd are elements where ours would be that we never write, in words.
	Odd []string
}

// LookAt looks in the kernel for what decides about a packet, by keys: it costs the same
// whatever the size of the table, but for ranges. Nothing is changed.
func LookAt(c Config, p Packet) (s Sight, err error) {
	r, err := inspect.Open()
	if err != nil {
		return s, err
	}
	defer func() { _ = r.Close() }()
	err = settled(r, func() error {
		l := &looking{reader: r, config: c, packet: p, Sight: Sight{State: NewState(), Keys: keysFor(p)}}
		err := l.look()
		s = l.Sight
		return err
	})
	if err != nil {
		return s, fmt.Errorf("look in table %s %s: %w", c.Family, TableName, err)
	}
	return s, nil
}

// keysFor names what decides about a packet, but for affinities.
func keysFor(p Packet) Keys {
	k := NewKeys()
	k.Ranges = true
	for _, f := range []Frontend{p.Frontend(), p.nodePort()} {
		k.Frontends[f] = true
	}
	for _, a := range []netip.Addr{p.Src, p.Dst} {
		k.Addrs[a] = true
	}
	return k
}

// A looking is a Sight that is being made.
type looking struct {
	Sight
	reader *inspect.Reader
	config Config
	packet Packet
	table  inKernel
}

func (l *looking) look() (err error) {
	if l.table, err = readTable(l.config.Family); err != nil {
		return err
	}
	rules := rulesetWriter{skeleton: NewSkeleton(l.config)}
	l.Wrong, l.There = rules.wrong(l.table), l.table.table
	if !l.table.table {
		return nil
	}
	steps := []func() error{l.addrs, l.ranges, l.routes, l.endpoints, l.sources, l.pins}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// element looks one up, and takes it into the state.
func (l *looking) element(e Element) (found bool, err error) {
	if _, ok := l.table.sets[e.Set]; !ok {
		return false, nil
	}
	raw, found, err := l.reader.Element(l.config.Family.table(), e.Set, keyOf(e))
	if found && !l.State.take(l.config.Family, e.Set, raw) {
		key, _, _ := strings.Cut(e.Text(), " : ")
		l.Odd = append(l.Odd, fmt.Sprintf("%s { %s }", e.Set, key))
	}
	return found, err
}

func (l *looking) addrs() error {
	for _, set := range AddrSets() {
		for a := range l.Keys.Addrs {
			if _, err := l.element(Element{Set: string(set), Frontend: Frontend{Addr: a}}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *looking) ranges() error {
	for _, set := range []RangeSet{ServiceCIDRs, PodCIDRs} {
		if err := l.list(string(set)); err != nil {
			return err
		}
	}
	return nil
}

// list reads a whole set.
func (l *looking) list(set string) error {
	if _, ok := l.table.sets[set]; !ok {
		return nil
	}
	part, err := readOnce(l.reader, l.config.Family, set)
	if err != nil {
		return err
	}
	if strays := l.State.merge(RangeSet(set), part); len(strays) > 0 {
		l.Odd = append(l.Odd, fmt.Sprintf("%d in %s", len(strays), set))
	}
	return nil
}

func (l *looking) frontend(nodePort bool) Frontend {
	if nodePort {
		return l.packet.nodePort()
	}
	return l.packet.Frontend()
}

func (l *looking) routes() error {
	for _, m := range RouteMaps() {
		// Any chain makes it the element of a frontend: the kernel looks at the key only.
		if _, err := l.element(Element{Set: string(m), Frontend: l.frontend(m.NodePorts()), Chain: RefuseChain}); err != nil {
			return err
		}
	}
	return nil
}

func (l *looking) endpoints() error {
	for _, m := range SlotMaps() {
		f := l.frontend(m.NodePorts())
		sets := []string{m.EmptySet()}
		for _, c := range l.table.counts() {
			if c.slots == m && c.protocol == f.Protocol {
				sets = append(sets, m.countName(c.protocol, c.n))
			}
		}
		for _, set := range sets {
			if _, err := l.element(Element{Set: set, Frontend: f}); err != nil {
				return err
			}
		}
		if err := l.slots(m, f); err != nil {
			return err
		}
	}
	return nil
}

// slots looks for the endpoints up to the number that there should be, and on as long as
// there are some.
func (l *looking) slots(m SlotMap, f Frontend) error {
	// An endpoint makes it the element of a slot.
	e := Element{Set: m.Of(f.Protocol), Frontend: f, Endpoint: netip.AddrPortFrom(l.packet.Dst, f.Port)}
	for ; e.Slot < maxSlot; e.Slot++ {
		found, err := l.element(e)
		if err != nil || !found && e.Slot >= l.State.Counts[m][f] {
			return err
		}
	}
	return nil
}

// sources reads who is let in, if anybody looks for it.
func (l *looking) sources() error {
	f := l.packet.Frontend()
	if !strings.HasPrefix(l.State.Routes[ServiceIPs][f], "guarded-") {
		return nil
	}
	if err := l.list(AllowedSources); err != nil {
		return err
	}
	maps.DeleteFunc(l.State.Sources, func(other Frontend, _ []netip.Prefix) bool { return other != f })
	return nil
}

// pins looks for what belongs to the affinity of the frontends: members, and where the
// sender is pinned to.
func (l *looking) pins() error {
	l.Pins = Pins{Any: map[string]netip.AddrPort{}, Local: map[string]netip.AddrPort{}}
	for _, m := range []RouteMap{Pinning, NodePortPinning} {
		if a, ok := affinityOf(l.State.Routes[m][l.frontend(m.NodePorts())]); ok {
			l.Keys.Affinities[a.ID] = true
			l.State.Affinities[a.ID] = a
		}
	}
	for _, m := range SlotMaps() {
		if to, ok := l.State.Routes[m.sticky()][l.frontend(m.NodePorts())]; ok {
			_, id, _ := strings.Cut(to, "sticky-")
			l.Keys.Affinities[id] = true
		}
	}
	for id := range l.Keys.Affinities {
		for scope, pins := range map[string]map[string]netip.AddrPort{anyPins: l.Pins.Any, localPins: l.Pins.Local} {
			if err := l.list(memberSet(scope, id)); err != nil {
				return err
			}
			if err := l.pin(scope, id, pins); err != nil {
				return err
			}
		}
	}
	return nil
}

// pin looks for the two elements of a pin: one alone is none.
func (l *looking) pin(scope, id string, to map[string]netip.AddrPort) error {
	addrs, ports := pinMaps(scope, id)
	var addr netip.Addr
	var port uint16
	for set, read := range map[string]func(*reader){
		addrs: func(r *reader) { addr = r.addr() },
		ports: func(r *reader) { port = r.lonePort() },
	} {
		if _, ok := l.table.sets[set]; !ok {
			return nil
		}
		e, there, err := l.reader.Element(l.config.Family.table(), set, l.packet.Src.AsSlice())
		if err != nil {
			return err
		}
		if there {
			read(&reader{family: l.config.Family, b: e.Value})
		}
	}
	if addr.IsValid() && port != 0 {
		to[id] = netip.AddrPortFrom(addr, port)
	}
	return nil
}

// wrong says what keeps the rules from being those of a daemon of this configuration.
func (w rulesetWriter) wrong(k inKernel) string {
	switch {
	case !k.table:
		return fmt.Sprintf("there is no table %s %s", w.skeleton.Family, TableName)
	case k.dormant:
		return fmt.Sprintf("the table %s %s is dormant", w.skeleton.Family, TableName)
	case w.current(k):
		return ""
	}
	for _, c := range w.skeleton.Chains {
		have, there := k.chains[c.Name]
		switch {
		case !there:
			return fmt.Sprintf("the chain %s is missing", c.Name)
		case c.Base != nil && !fits(have, c):
			return fmt.Sprintf("the chain %s is not hooked in where it should be", c.Name)
		}
	}
	if _, ok := k.chains[versionPrefix+w.skeleton.Version()]; !ok {
		return "the rules are of another version, or of other settings"
	}
	return "the rules are not what they were when they were last written"
}
