package nft

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Text gives the skeleton as nft would load it.
func (s Skeleton) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s %s {\n", s.Family, TableName)
	for _, c := range s.Counters {
		fmt.Fprintf(&b, "\tcounter %s {\n\t\tcomment %q\n\t}\n", c.Name, c.Comment)
	}
	for _, set := range s.Sets {
		b.WriteString(set.text())
	}
	for _, c := range s.Chains {
		b.WriteString(c.text())
	}
	b.WriteString("}\n")
	return b.String()
}

func (s Set) text() string {
	kind, word := "set", "type"
	if s.Map {
		kind = "map"
	}
	if s.TypeOf {
		word = "typeof"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\t%s %s {\n\t\t%s %s\n", kind, s.Name, word, s.Type)
	if s.Size > 0 {
		fmt.Fprintf(&b, "\t\tsize %d\n", s.Size)
	}
	if s.Flags != "" {
		fmt.Fprintf(&b, "\t\tflags %s\n", s.Flags)
	}
	fmt.Fprintf(&b, "\t\tcomment %q\n\t}\n", s.Comment)
	return b.String()
}

func (c Chain) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\tchain %s {\n", c.Name)
	if c.Comment != "" {
		fmt.Fprintf(&b, "\t\tcomment %q\n", c.Comment)
	}
	if c.Base != nil {
		fmt.Fprintf(&b, "\t\ttype nat hook %s priority %d; policy accept;\n", c.Base.Hook, c.Base.Priority)
	}
	for _, r := range c.Rules {
		fmt.Fprintf(&b, "\t\t%s\n", r)
	}
	b.WriteString("\t}\n")
	return b.String()
}

// Text gives the element in nft's words, without the set that it is in.
func (e Element) Text() string {
	front := e.Frontend.text(protocolWord(e.Frontend.Protocol))
	port := e.Frontend.text("")
	_, empty := emptySetOf(e.Set)
	switch {
	case isMemberSet(e.Set):
		return fmt.Sprintf("%s . %d", e.Endpoint.Addr(), e.Endpoint.Port())
	case e.Set == string(Hairpins):
		return fmt.Sprintf("%s . %s", e.Frontend.Addr, e.Frontend.Addr)
	case e.Set == AllowedSources:
		return fmt.Sprintf("%s . %s", front, e.Source)
	case e.Endpoint.IsValid():
		return fmt.Sprintf("%s . %d : %s . %d", port, e.Slot, e.Endpoint.Addr(), e.Endpoint.Port())
	case e.Chain != "":
		return fmt.Sprintf("%s : %s %s", front, e.verdict(), e.Chain)
	case empty:
		return front
	case e.Frontend.Protocol != 0:
		return port
	}
	return e.Frontend.Addr.String()
}

func (e Element) verdict() string {
	if RouteMap(e.Set).Returns() {
		return "jump"
	}
	return "goto"
}

// text gives the parts that there are, as a key.
func (f Frontend) text(protocol string) string {
	var parts []string
	if f.Addr.IsValid() {
		parts = append(parts, f.Addr.String())
	}
	if protocol != "" {
		parts = append(parts, protocol)
	}
	return strings.Join(append(parts, fmt.Sprint(f.Port)), " . ")
}

// Text gives the changes as an nft script for a table.
func (c Changes) Text(family Family) string {
	var b strings.Builder
	line := func(verb, set, element string) {
		fmt.Fprintf(&b, "%s element %s %s %s { %s }\n", verb, family, TableName, set, element)
	}
	ranges := func(m map[RangeSet][]netip.Prefix) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(&b, "flush set %s %s %s\n", family, TableName, name)
			for _, p := range m[name] {
				line("add", string(name), p.String())
			}
		}
	}
	ranges(c.Ranges)
	for _, s := range c.all() {
		for _, e := range s.Delete {
			line("delete", e.Set, e.Text())
		}
		for _, e := range s.Add {
			line("add", e.Set, e.Text())
		}
	}
	ranges(c.RangesLast)
	return b.String()
}
