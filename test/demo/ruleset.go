package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// sizes is what the kernel lists of a table.
type sizes struct {
	rules, chains int
	sets          map[string]int // elements of each set and map
}

func (s sizes) elements() int {
	sum := 0
	for n := range maps.Values(s.sets) {
		sum += n
	}
	return sum
}

// listSizes counts what nft lists of our table.
func listSizes(node *netns.NS, table string) (sizes, error) {
	out, err := node.Output("nft", "-j", "list", "table", table, "onerule")
	if err != nil {
		return sizes{}, err
	}
	return parseSizes([]byte(out))
}

func parseSizes(listing []byte) (sizes, error) {
	type set struct {
		Name string            `json:"name"`
		Elem []json.RawMessage `json:"elem"`
	}
	var in struct {
		Objects []struct {
			Rule  *struct{} `json:"rule"`
			Chain *struct{} `json:"chain"`
			Set   *set      `json:"set"`
			Map   *set      `json:"map"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal(listing, &in); err != nil {
		return sizes{}, fmt.Errorf("read nft's listing: %w", err)
	}
	s := sizes{sets: map[string]int{}}
	for _, o := range in.Objects {
		switch {
		case o.Rule != nil:
			s.rules++
		case o.Chain != nil:
			s.chains++
		case o.Set != nil:
			s.sets[o.Set.Name] = len(o.Set.Elem)
		case o.Map != nil:
			s.sets[o.Map.Name] = len(o.Map.Elem)
		}
	}
	return s, nil
}

// inKernel says whether a pod is an endpoint in a table's listing.
func inKernel(node *netns.NS, f family, p pod) (bool, error) {
	out, err := node.Output("nft", "list", "map", f.table, "onerule", "endpoints-tcp")
	return strings.Contains(out, fmt.Sprintf(": %s . %d", p.addrs[f.name], podPort)), err
}

// generation is the number that the kernel gives a namespace's ruleset, and changes
// with each transaction.
func generation(node *netns.NS) (uint32, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: node.Fd()})
	if err != nil {
		return 0, fmt.Errorf("ask for the ruleset's generation: %w", err)
	}
	defer conn.Close()
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return 0, fmt.Errorf("ask for the ruleset's generation: %w", err)
	}
	const header = 4 // nfgenmsg
	if len(answers) != 1 || len(answers[0].Data) < header {
		return 0, fmt.Errorf("ask for the ruleset's generation: %d answers", len(answers))
	}
	return parseGeneration(answers[0].Data[header:])
}

func parseGeneration(attributes []byte) (uint32, error) {
	d, err := netlink.NewAttributeDecoder(attributes)
	if err != nil {
		return 0, fmt.Errorf("read the ruleset's generation: %w", err)
	}
	d.ByteOrder = binary.BigEndian
	for d.Next() {
		if d.Type() == unix.NFTA_GEN_ID {
			return d.Uint32(), d.Err()
		}
	}
	return 0, fmt.Errorf("read the ruleset's generation: not in the answer (%w)", d.Err())
}

// A textBlock is a set, map or chain of nft's listing.
type textBlock struct {
	kind, name, comment string
	lines               []string // of a chain: its hook and rules
}

// blocks takes nft's listing of a table apart.
func blocks(listing string) []textBlock {
	var found []textBlock
	for line := range strings.Lines(listing) {
		line = strings.TrimRight(line, "\n")
		text := strings.TrimSpace(line)
		words := strings.Fields(text)
		switch {
		case strings.HasPrefix(line, "\t") && !strings.HasPrefix(line, "\t\t") && len(words) == 3 && words[2] == "{":
			found = append(found, textBlock{kind: words[0], name: words[1]})
		case !strings.HasPrefix(line, "\t\t") || len(found) == 0:
		default:
			b := &found[len(found)-1]
			if comment, ok := strings.CutPrefix(text, `comment "`); ok {
				b.comment = strings.TrimSuffix(comment, `"`)
			} else if b.kind == "chain" {
				b.lines = append(b.lines, text)
			}
		}
	}
	return found
}

// shorten makes nft's listing of a table short: of sets only their size, chains that
// differ in nothing but the protocol once, empty ones by name.
func shorten(listing string, size map[string]int) string {
	var sets [][]string
	var chains, empty strings.Builder
	all := blocks(listing)
	for _, b := range all {
		alike := likeTCP(b, all)
		switch {
		case b.kind != "chain":
			sets = append(sets, []string{b.kind + " " + b.name, plural(size[b.name], "element"), b.comment})
		case len(b.lines) == 0:
			fmt.Fprintf(&empty, " %s", b.name)
		case alike:
		default:
			if b.comment != "" {
				fmt.Fprintf(&chains, "# %s\n", b.comment)
			}
			fmt.Fprintf(&chains, "chain %s%s {\n    %s\n}\n", b.name, twins(b, all), strings.Join(b.lines, "\n    "))
		}
	}
	text := strings.Join(columns(sets), "\n") + "\n" + chains.String()
	if empty.Len() > 0 {
		text += "chains without rules:" + empty.String() + "\n"
	}
	return text
}

func plural(n int, what string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// likeTCP says whether a chain says for UDP or SCTP what another says for TCP.
func likeTCP(b textBlock, all []textBlock) bool {
	for _, protocol := range []string{"udp", "sctp"} {
		if !strings.Contains(b.name, "-"+protocol) || len(b.lines) == 0 {
			continue
		}
		name := strings.Replace(b.name, protocol, "tcp", 1)
		i := slices.IndexFunc(all, func(o textBlock) bool { return o.kind == b.kind && o.name == name })
		return i >= 0 && strings.ReplaceAll(strings.Join(b.lines, "\n"), protocol, "tcp") == strings.Join(all[i].lines, "\n")
	}
	return false
}

// twins names the chains that are like this one for TCP.
func twins(b textBlock, all []textBlock) string {
	var names string
	for _, o := range all {
		if o.name != b.name && likeTCP(o, all) && slices.Contains([]string{
			strings.Replace(o.name, "udp", "tcp", 1), strings.Replace(o.name, "sctp", "tcp", 1),
		}, b.name) {
			names += ", " + o.name
		}
	}
	return names
}
