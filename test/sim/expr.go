package sim

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"onerule/nft"
)

// A value is what an expression gives: an address, a number of any width, or a name.
type value struct {
	addr netip.Addr
	num  uint32
	name string
}

// A field reads one value of the packet. It gives false where the packet has no
// such field: the rule then does not match, as in the kernel.
type field struct {
	kind string // nft's name of the type
	read func(w *walk) (value, bool)
}

// A tuple is a concatenation of fields.
type tuple []field

func (t tuple) read(w *walk) ([]value, bool) {
	values := make([]value, len(t))
	for i, f := range t {
		v, ok := f.read(w)
		if !ok {
			return nil, false
		}
		values[i] = v
	}
	return values, true
}

func (t tuple) kinds() string {
	words := make([]string, len(t))
	for i, f := range t {
		words[i] = f.kind
	}
	return strings.Join(words, " . ")
}

// words is what is left of a rule.
type words struct {
	list   []string
	family nft.Family
}

func (w *words) next() string {
	if len(w.list) == 0 {
		return ""
	}
	word := w.list[0]
	w.list = w.list[1:]
	return word
}

// take consumes a sequence of words if it stands next.
func (w *words) take(sequence string) bool {
	want := strings.Fields(sequence)
	if len(w.list) < len(want) {
		return false
	}
	for i, word := range want {
		if w.list[i] != word {
			return false
		}
	}
	w.list = w.list[len(want):]
	return true
}

func (w *words) tuple() (tuple, error) {
	var t tuple
	for {
		f, err := w.field()
		if err != nil {
			return nil, err
		}
		t = append(t, f)
		if !w.take(".") {
			return t, nil
		}
	}
}

// field parses one field, with the bit operations behind it.
func (w *words) field() (field, error) {
	f, err := w.plainField()
	for err == nil {
		switch {
		case w.take("and"):
			f, err = w.masked(f, func(a, b uint32) uint32 { return a & b })
		case w.take("or"):
			f, err = w.masked(f, func(a, b uint32) uint32 { return a | b })
		case w.take("xor"):
			f, err = w.masked(f, func(a, b uint32) uint32 { return a ^ b })
		default:
			return f, nil
		}
	}
	return field{}, err
}

func (w *words) masked(f field, op func(a, b uint32) uint32) (field, error) {
	word := w.next()
	bits, err := strconv.ParseUint(word, 0, 32)
	if err != nil {
		return field{}, fmt.Errorf("mask %q is no number", word)
	}
	read := f.read
	f.read = func(w *walk) (value, bool) {
		v, ok := read(w)
		return value{num: op(v.num, uint32(bits))}, ok
	}
	return f, nil
}

func (w *words) plainField() (field, error) {
	addrKind := map[nft.Family]string{nft.IPv4: "ipv4_addr", nft.IPv6: "ipv6_addr"}[w.family]
	switch {
	case w.take(w.family.String() + " saddr"):
		return field{addrKind, func(w *walk) (value, bool) { return value{addr: w.packet.Src}, true }}, nil
	case w.take(w.family.String() + " daddr"):
		return field{addrKind, func(w *walk) (value, bool) { return value{addr: w.packet.Dst}, true }}, nil
	case w.take("ct original " + w.family.String() + " daddr"):
		return field{addrKind, func(w *walk) (value, bool) { return value{addr: w.original.Dst}, true }}, nil
	case w.take("ct original proto-dst"):
		return number("inet_service", func(w *walk) uint32 { return uint32(w.original.Port) }), nil
	case w.take("ct original protocol"):
		return number("inet_proto", func(w *walk) uint32 { return uint32(w.original.Protocol) }), nil
	case w.take("iifname"):
		return field{"ifname", func(w *walk) (value, bool) { return value{name: w.packet.Iif}, true }}, nil
	case w.take("fib saddr type"):
		return number("fib_addrtype", func(w *walk) uint32 { return w.addrType(w.packet.Src) }), nil
	case w.take("fib daddr . iif oif"):
		return number("fib_oif", func(w *walk) uint32 { return w.returns() }), nil
	case w.take("fib daddr type"):
		return number("fib_addrtype", func(w *walk) uint32 { return w.addrType(w.packet.Dst) }), nil
	case w.take("meta l4proto"):
		return number("inet_proto", func(w *walk) uint32 { return uint32(w.packet.Protocol) }), nil
	case w.take("meta mark"):
		return number("mark", func(w *walk) uint32 { return w.packet.Mark }), nil
	case w.take("ct status"):
		return number("ct_status", (*walk).status), nil
	case w.take("tcp flags"): // every packet begins a connection: a SYN
		return field{"tcp_flag", func(w *walk) (value, bool) { return value{num: 2}, w.packet.Protocol == 6 }}, nil
	case w.take("th dport"):
		return number("inet_service", func(w *walk) uint32 { return uint32(w.packet.Port) }), nil
	case w.take("numgen random mod"):
		return w.numgen()
	}
	for _, p := range nft.Protocols() {
		if w.take(p.Word + " dport") {
			return portOf(p.Number), nil
		}
	}
	return field{}, fmt.Errorf("unknown expression at %q", strings.Join(w.list, " "))
}

func number(kind string, read func(w *walk) uint32) field {
	return field{kind, func(w *walk) (value, bool) { return value{num: read(w)}, true }}
}

// portOf is the port of one protocol: other packets don't match, because nft puts
// a comparison of the protocol in front.
func portOf(protocol uint8) field {
	return field{"inet_service", func(w *walk) (value, bool) {
		return value{num: uint32(w.packet.Port)}, w.packet.Protocol == protocol
	}}
}

func (w *words) numgen() (field, error) {
	word := w.next()
	n, err := strconv.ParseUint(word, 10, 31)
	if err != nil || n == 0 {
		return field{}, fmt.Errorf("numgen modulus %q is no number above 0", word)
	}
	return number("integer", func(w *walk) uint32 { return uint32(w.choose(int(n))) }), nil
}

// literal parses a constant of a type.
func (w *words) literal(kind string) (uint32, error) {
	word := w.next()
	switch kind {
	case "inet_proto":
		for _, p := range nft.Protocols() {
			if p.Word == word {
				return uint32(p.Number), nil
			}
		}
	case "fib_addrtype":
		if word == "local" {
			return typeLocal, nil
		}
	case "fib_oif":
		if word == "exists" {
			return 1, nil
		}
	case "ct_status":
		if word == "dnat" {
			return statusDNAT, nil
		}
	}
	n, err := strconv.ParseUint(word, 0, 32)
	if err != nil {
		return 0, fmt.Errorf("constant %q of type %s is not known", word, kind)
	}
	return uint32(n), nil
}
