package sim

import (
	"fmt"
	"net/netip"
	"strings"
)

// dnatToPin parses a DNAT to the address in one map and the port in another.
func (p parser) dnatToPin(w *words) (statement, error) {
	client, addrs, err := p.pinMap(w)
	if err != nil {
		return nil, err
	}
	if !w.take(":") {
		return nil, fmt.Errorf("dnat to an address without a port")
	}
	_, ports, err := p.pinMap(w)
	if err != nil {
		return nil, err
	}
	return func(w *walk) verdict {
		values, ok := client.read(w)
		if !ok {
			return verdict{code: skip}
		}
		addr, known := w.pins[addrs][values[0].addr]
		port, both := w.pins[ports][values[0].addr]
		if !known || !both {
			return verdict{code: skip}
		}
		return w.translate(netip.AddrPortFrom(addr.Addr(), port.Port()))
	}, nil
}

// pinMap parses a look-up of a client.
func (p parser) pinMap(w *words) (client tuple, name string, err error) {
	if client, err = w.tuple(); err != nil {
		return nil, "", err
	}
	if !w.take("map") {
		return nil, "", fmt.Errorf("dnat to %q without map", client.kinds())
	}
	name, _, err = p.set(w.next(), client)
	return client, name, err
}

// update parses the update of a map: what the key holds stays, else it gets the value.
func (p parser) update(w *words) (statement, error) {
	reference := w.next()
	if !w.take("{") {
		return nil, fmt.Errorf("update of %q without an element", reference)
	}
	key, err := w.tuple()
	if err != nil {
		return nil, err
	}
	name, set, err := p.set(reference, key)
	if err != nil {
		return nil, err
	}
	if !w.take("timeout") {
		return nil, fmt.Errorf("update of %s without a timeout: pins would stay for ever", name)
	}
	w.next()
	if !w.take(":") {
		return nil, fmt.Errorf("update of %s without a value", name)
	}
	data, err := w.tuple()
	if err != nil {
		return nil, err
	}
	if !w.take("}") || data.kinds() != set.value {
		return nil, fmt.Errorf("update of %s, which holds %q, with %q", name, set.value, data.kinds())
	}
	return func(w *walk) verdict {
		k, ok := key.read(w)
		v, has := data.read(w)
		if !ok || !has {
			return verdict{code: skip}
		}
		if w.pins[name] == nil {
			w.pins[name] = map[netip.Addr]netip.AddrPort{}
		}
		if _, held := w.pins[name][k[0].addr]; !held {
			w.pins[name][k[0].addr] = netip.AddrPortFrom(v[0].addr, uint16(v[0].num))
		}
		return verdict{code: next}
	}, nil
}

// compareAddr compares with an address or a range.
func compareAddr(w *words, f field, negated bool) (statement, error) {
	word := w.next()
	if !strings.Contains(word, "/") {
		word += "/128"
		if f.kind == "ipv4_addr" {
			word = strings.TrimSuffix(word, "/128") + "/32"
		}
	}
	within, err := netip.ParsePrefix(word)
	if err != nil {
		return nil, fmt.Errorf("constant %q is no address: %w", word, err)
	}
	return when(func(w *walk) bool {
		v, ok := f.read(w)
		return ok && within.Contains(v.addr) != negated
	}), nil
}

// compareName compares with the name of an interface, or the beginning of one.
func compareName(w *words, f field, negated bool) (statement, error) {
	want := strings.Trim(w.next(), `"`)
	prefix, open := strings.CutSuffix(want, "*")
	return when(func(w *walk) bool {
		v, ok := f.read(w)
		same := v.name == want
		if open {
			same = strings.HasPrefix(v.name, prefix)
		}
		return ok && same != negated
	}), nil
}
