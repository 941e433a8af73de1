package sim

import (
	"errors"
	"fmt"
	"strings"

	"onerule/nft"
)

// A rule is a list of statements. The first that does not let the packet go on
// ends it.
type rule []statement

// A statement does one thing to the packet on its walk.
type statement func(w *walk) verdict

// A verdict says where a packet goes after a statement.
type verdict struct {
	code  code
	chain string // where jump and goto go
}

type code uint8

const (
	next   code = iota // to the next statement
	skip               // to the next rule
	accept             // out of this hook
	drop
	refuse
	leave // back to the chain that jumped here
	jump
	goTo
)

// A parser knows what a rule may refer to.
type parser struct {
	family nft.Family
	sets   map[string]declared
	chains map[string]bool
}

// A declared set or map, with the types of its key and, for a map, its value.
type declared struct{ key, value string }

func newParser(f nft.Family, sets []nft.Set, chains []nft.Chain) (parser, error) {
	p := parser{f, map[string]declared{}, map[string]bool{}}
	return p, p.add(sets, chains)
}

// add makes sets and chains known.
func (p parser) add(sets []nft.Set, chains []nft.Chain) error {
	for _, s := range sets {
		d, err := p.declare(s)
		if err != nil {
			return err
		}
		if _, twice := p.sets[s.Name]; twice {
			return fmt.Errorf("set %s is there twice", s.Name)
		}
		p.sets[s.Name] = d
	}
	for _, c := range chains {
		if p.chains[c.Name] {
			return fmt.Errorf("chain %s is there twice", c.Name)
		}
		p.chains[c.Name] = true
	}
	return nil
}

func (p parser) declare(s nft.Set) (declared, error) {
	key, val, isMap := strings.Cut(s.Type, " : ")
	if isMap != s.Map {
		return declared{}, fmt.Errorf("set %s: type %q, but map is %v", s.Name, s.Type, s.Map)
	}
	if !s.TypeOf {
		return declared{key, val}, nil
	}
	var d declared
	for _, part := range []struct {
		text string
		to   *string
	}{{key, &d.key}, {val, &d.value}} {
		w := words{strings.Fields(part.text), p.family}
		t, err := w.tuple()
		if err == nil && len(w.list) > 0 {
			err = fmt.Errorf("left over: %q", strings.Join(w.list, " "))
		}
		if err != nil {
			return declared{}, fmt.Errorf("set %s: typeof %q: %w", s.Name, part.text, err)
		}
		*part.to = t.kinds()
	}
	return d, nil
}

// rule parses a rule whole, or not at all.
func (p parser) rule(text string) (rule, error) {
	w := &words{strings.Fields(text), p.family}
	var r rule
	for len(w.list) > 0 {
		s, err := p.statement(w)
		if err != nil {
			return nil, fmt.Errorf("rule %q: %w", text, err)
		}
		r = append(r, s)
	}
	if len(r) == 0 {
		return nil, errors.New("empty rule")
	}
	return r, nil
}

func (p parser) statement(w *words) (statement, error) {
	switch {
	case w.take("counter"):
		if w.take("name") {
			w.next()
		}
		return always(next), nil
	case w.take("accept"):
		return always(accept), nil
	case w.take("drop"):
		return always(drop), nil
	case w.take("return"):
		return always(leave), nil
	case w.take("jump"):
		return p.toChain(jump, w.next())
	case w.take("goto"):
		return p.toChain(goTo, w.next())
	case w.take("reject with tcp reset"):
		return resetTCP, nil
	case w.take("reject"):
		return always(refuse), nil
	case w.take("masquerade fully-random"), w.take("masquerade"):
		return masquerade, nil
	case w.take("meta mark set"):
		return p.setMark(w)
	case w.take(fmt.Sprintf("dnat %s addr . port to", p.family)):
		return p.dnat(w)
	case w.take("dnat to"):
		return p.dnatToPin(w)
	case w.take("update"):
		return p.update(w)
	}
	return p.match(w)
}

func always(c code) statement { return func(*walk) verdict { return verdict{code: c} } }

func (p parser) toChain(c code, name string) (statement, error) {
	if !p.chains[name] {
		return nil, fmt.Errorf("no chain %q", name)
	}
	return func(*walk) verdict { return verdict{c, name} }, nil
}

func resetTCP(w *walk) verdict {
	if w.packet.Protocol != 6 {
		w.fail("a TCP reset was asked for a packet of protocol %d: nft wants meta l4proto tcp in that rule", w.packet.Protocol)
	}
	return verdict{code: refuse}
}

func masquerade(w *walk) verdict {
	if w.hook != "postrouting" {
		w.fail("masquerade in %s", w.hook)
	}
	w.masqueraded = true
	return verdict{code: accept}
}

func (p parser) setMark(w *words) (statement, error) {
	f, err := w.field()
	if err != nil {
		return nil, err
	}
	if f.kind != "mark" {
		return nil, fmt.Errorf("mark set to a %s", f.kind)
	}
	return func(w *walk) verdict {
		v, _ := f.read(w)
		w.packet.Mark = v.num
		return verdict{code: next}
	}, nil
}

// dnat parses a DNAT to what a map of addresses and ports holds.
func (p parser) dnat(w *words) (statement, error) {
	key, err := w.tuple()
	if err != nil {
		return nil, err
	}
	if !w.take("map") {
		return nil, fmt.Errorf("dnat to %q without map", key.kinds())
	}
	name, set, err := p.set(w.next(), key)
	if err != nil {
		return nil, err
	}
	if set.value != "ipv4_addr . inet_service" && set.value != "ipv6_addr . inet_service" {
		return nil, fmt.Errorf("dnat to map %s of %q", name, set.value)
	}
	return func(w *walk) verdict {
		values, ok := key.read(w)
		if !ok {
			return verdict{code: skip}
		}
		to, found := w.endpoint(name, values)
		if !found {
			return verdict{code: skip}
		}
		return w.translate(to)
	}, nil
}

// match parses a look-up or a comparison.
func (p parser) match(w *words) (statement, error) {
	key, err := w.tuple()
	if err != nil {
		return nil, err
	}
	if w.take("vmap") {
		return p.vmap(w, key)
	}
	negated := w.take("!=")
	if !negated {
		w.take("==")
	}
	if len(w.list) > 0 && strings.HasPrefix(w.list[0], "@") {
		return p.member(w, key, negated)
	}
	return compare(w, key, negated)
}

func (p parser) vmap(w *words, key tuple) (statement, error) {
	name, set, err := p.set(w.next(), key)
	if err != nil {
		return nil, err
	}
	if set.value != "verdict" {
		return nil, fmt.Errorf("vmap with map %s of %q", name, set.value)
	}
	return func(w *walk) verdict {
		values, ok := key.read(w)
		if !ok {
			return verdict{code: skip}
		}
		chain, found := w.route(name, values)
		if !found {
			return verdict{code: skip}
		}
		if nft.RouteMap(name).Returns() {
			return verdict{jump, chain}
		}
		return verdict{goTo, chain}
	}, nil
}

func (p parser) member(w *words, key tuple, negated bool) (statement, error) {
	name, set, err := p.set(w.next(), key)
	if err != nil {
		return nil, err
	}
	if set.value != "" {
		return nil, fmt.Errorf("%s is a map, used as a set", name)
	}
	return when(func(w *walk) bool {
		values, ok := key.read(w)
		return ok && w.member(name, values) != negated
	}), nil
}

func compare(w *words, key tuple, negated bool) (statement, error) {
	if len(key) != 1 {
		return nil, fmt.Errorf("comparison of %q with a constant", key.kinds())
	}
	if key[0].kind == "ipv4_addr" || key[0].kind == "ipv6_addr" {
		return compareAddr(w, key[0], negated)
	}
	if key[0].kind == "ifname" {
		return compareName(w, key[0], negated)
	}
	want, err := w.literal(key[0].kind)
	if err != nil {
		return nil, err
	}
	return when(func(w *walk) bool {
		v, ok := key[0].read(w)
		same := v.num == want
		if key[0].kind == "ct_status" { // bits: nft means any of those named
			same = v.num&want != 0
		}
		return ok && same != negated
	}), nil
}

func when(matches func(w *walk) bool) statement {
	return func(w *walk) verdict {
		if matches(w) {
			return verdict{code: next}
		}
		return verdict{code: skip}
	}
}

// set finds a set by its reference and checks that the key is of its type.
func (p parser) set(reference string, key tuple) (string, declared, error) {
	name, ok := strings.CutPrefix(reference, "@")
	if !ok {
		return "", declared{}, fmt.Errorf("%q is no reference to a set", reference)
	}
	set, ok := p.sets[name]
	if !ok {
		return "", declared{}, fmt.Errorf("no set %q", name)
	}
	if set.key != key.kinds() {
		return "", declared{}, fmt.Errorf("look-up of %q in %s, which holds %q", key.kinds(), name, set.key)
	}
	return name, set, nil
}
