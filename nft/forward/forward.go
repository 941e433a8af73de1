// Package forward finds what others put in the way of forwarded packets: an accept in one
// table does not overrule a drop in another one, so our tables can't help it, and people
// have to know.
package forward

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"onerule/nft/dump"
	"onerule/nft/inspect"
)

// ours begins the names of our tables.
const ours = "onerule"

// A Barrier is a chain at the forward hook that drops what no rule of it accepts.
type Barrier struct {
	Family string // nft's word
	Table  string
	Chain  string // the base chain
	// Policy says that its policy drops; otherwise a rule does that every packet meets
	// which comes so far.
	Policy bool
}

// String says it in a sentence for people.
func (b Barrier) String() string {
	by := "a rule for everything"
	if b.Policy {
		by = "its policy"
	}
	return fmt.Sprintf("chain %s of table %s %s at the forward hook drops by %s", b.Chain, b.Family, b.Table, by)
}

// Barriers lists the chains of others that drop the packets of pods. links begins the names
// of the node's ends of pods' links. A chain that accepts all that comes in and all that
// goes out by such links, before it drops, is none. Reads only; iptables-legacy is not seen.
func Barriers(links string) (list []Barrier, err error) {
	r, err := inspect.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	err = r.Whole(func() error {
		list, err = barriers(r, links)
		return err
	})
	if err != nil {
		err = fmt.Errorf("look for chains that drop forwarded packets: %w", err)
	}
	return list, err
}

func word(family uint8) (string, bool) {
	w, ok := map[uint8]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}[family]
	return w, ok
}

func barriers(r *inspect.Reader, links string) (list []Barrier, err error) {
	chains, err := r.Chains(unix.NFPROTO_UNSPEC)
	if err != nil {
		return nil, err
	}
	for _, c := range chains {
		family, ok := word(c.Family)
		if !ok || !c.Base || c.Hook != unix.NF_INET_FORWARD || strings.HasPrefix(c.Table, ours) {
			continue
		}
		rules, err := r.Rules(inspect.Table{Family: c.Family, Name: c.Table})
		if err != nil {
			return nil, err
		}
		w := walk{links: []byte(links), chains: map[string][]inspect.Rule{}}
		for _, rule := range rules {
			w.chains[rule.Chain] = append(w.chains[rule.Chain], rule)
		}
		end, err := w.through(c.Name)
		if err != nil {
			return nil, fmt.Errorf("chain %s of table %s: %w", c.Name, c.Table, err)
		}
		const drop = 0 // NF_DROP
		policy := c.Policy == drop && end != drops && end != accepts
		if (end == drops || policy) && !(w.in && w.out) {
			list = append(list, Barrier{family, c.Table, c.Name, policy})
		}
	}
	return list, nil
}

// An end is how a chain ends for a packet that none of its conditions is for.
type end uint8

const (
	passes end = iota // at its end, or by return
	accepts
	drops
	jumps // a rule, to another chain
	goes  // a rule, to another chain for good
)

// A walk follows the rules that every packet meets. in and out say that all was accepted
// that comes in or goes out by a pod's link, by then.
type walk struct {
	links   []byte
	chains  map[string][]inspect.Rule
	in, out bool
	depth   int
}

// maxDepth is more than the kernel lets chains be nested.
const maxDepth = 64

func (w *walk) through(chain string) (end, error) {
	if w.depth++; w.depth > maxDepth {
		return passes, errors.New("chains are nested too deeply")
	}
	defer func() { w.depth-- }()
	for _, rule := range w.chains[chain] {
		v, to, err := w.judge(rule)
		if err != nil {
			return passes, err
		}
		if w.in && w.out {
			return accepts, nil
		}
		switch v {
		case accepts, drops:
			return v, nil
		case jumps, goes:
			if after, err := w.through(to); err != nil || after != passes || v == goes {
				return after, err
			}
		case passes:
			if to == returned {
				return passes, nil
			}
		}
	}
	return passes, nil
}

// returned stands for the chain that a return leads to.
const returned = "\x00return"

// judge gives the verdict of a rule that is for everything, and passes for others. It
// notes when a rule accepts all of a pod's link.
func (w *walk) judge(rule inspect.Rule) (verdict end, to string, err error) {
	steps, err := rule.Steps()
	if err != nil {
		return passes, "", err
	}
	var link linkMatch
	conditions := 0
	for _, e := range steps {
		switch e.Name {
		case "counter", "log", "objref", "payload", "ct":
		case "meta":
			link.key = number(e.Data, unix.NFTA_META_KEY)
		case "cmp":
			if conditions++; number(e.Data, unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ && bytes.Equal(compared(e.Data), w.links) {
				link.compared = true
			}
		case "reject":
			verdict = drops
		case "immediate":
			verdict, to = verdictOf(e.Data)
		case "target":
			if strings.EqualFold(attribute(e.Data, unix.NFTA_TARGET_NAME), "reject") {
				verdict = drops
			}
		case "match":
			if attribute(e.Data, unix.NFTA_MATCH_NAME) != "comment" {
				conditions++
			}
		default: // what is not known may be a condition
			conditions++
		}
	}
	if conditions == 0 {
		return verdict, to, nil
	}
	if conditions == 1 && link.compared && verdict == accepts {
		w.in = w.in || link.key == unix.NFT_META_IIFNAME
		w.out = w.out || link.key == unix.NFT_META_OIFNAME
	}
	return passes, "", nil
}

// A linkMatch is a comparison of a link's name.
type linkMatch struct {
	key      uint32
	compared bool
}

// verdictOf gives what an immediate expression says, and the chain that it names.
func verdictOf(data []byte) (end, string) {
	const (
		drop, accept       = 0, 1
		jump, gone, goBack = -3, -4, -5
	)
	value := dump.Find(dump.Find(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
	if value == nil {
		return passes, "" // a value for a register
	}
	chain := attribute(value, unix.NFTA_VERDICT_CHAIN)
	switch int32(number(value, unix.NFTA_VERDICT_CODE)) {
	case drop:
		return drops, ""
	case accept:
		return accepts, ""
	case jump:
		return jumps, chain
	case gone:
		return goes, chain
	case goBack:
		return passes, returned
	}
	return passes, ""
}

// compared gives what a comparison compares with.
func compared(data []byte) []byte {
	return dump.Find(dump.Find(data, unix.NFTA_CMP_DATA), unix.NFTA_DATA_VALUE)
}

func attribute(b []byte, kind uint16) string {
	return dump.Text(dump.Find(b, kind))
}

func number(b []byte, kind uint16) uint32 { return dump.Number(dump.Find(b, kind)) }
