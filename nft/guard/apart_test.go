package guard_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/nft/dump"
	"onerule/nft/guard"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/wired"
)

const deadlyTable = "foreign"

// deadly makes a table with a set whose key is noted to be an expression that no nft knows:
// 1.0.6 dies of it, whatever it is asked for.
func deadly(f nft.Family) error {
	number := func(kind uint16, n uint32) []byte { return dump.Attr(kind, binary.BigEndian.AppendUint32(nil, n)) }
	note := append(binary.NativeEndian.AppendUint32([]byte{3, 8, 0, 4}, 9999), 1, 0)
	set := slices.Concat(
		dump.Name(unix.NFTA_SET_TABLE, deadlyTable), dump.Name(unix.NFTA_SET_NAME, "unknown"), number(unix.NFTA_SET_ID, 1),
		number(unix.NFTA_SET_KEY_TYPE, 7), number(unix.NFTA_SET_KEY_LEN, 4), dump.Attr(unix.NFTA_SET_USERDATA, note),
	)
	family := uint8(unix.NFPROTO_IPV4)
	if f == nft.IPv6 {
		family = unix.NFPROTO_IPV6
	}
	change := func(kind uint16, flags netlink.HeaderFlags, attrs []byte) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
			Data:   dump.Request(family, attrs),
		}
	}
	frame := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request}, Data: []byte{3: unix.NFNL_SUBSYS_NFTABLES}}
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if _, err = c.SendMessages([]netlink.Message{
		frame(unix.NFNL_MSG_BATCH_BEGIN),
		change(unix.NFT_MSG_NEWTABLE, netlink.Create, dump.Name(unix.NFTA_TABLE_NAME, deadlyTable)),
		change(unix.NFT_MSG_NEWSET, netlink.Create|netlink.Acknowledge, set),
		frame(unix.NFNL_MSG_BATCH_END),
	}); err == nil {
		_, err = c.Receive()
	}
	return err
}

// manyRanges fill several messages of a listing.
func manyRanges(f nft.Family, p addr.Plan) guard.Ranges {
	want := ranges(p)
	for i := range 3000 {
		a, bits := addr.Nth(netip.MustParsePrefix("10.0.0.0/8"), i*512), 24
		if f == nft.IPv6 {
			a, bits = addr.Nth(p.ClusterCIDR, i*512), 120
		}
		want.Cluster = append(want.Cluster, netip.PrefixFrom(a, bits))
	}
	return want
}

// The table that is made beside what nft dies of is the one that is made without it, with its
// ranges and its seal, in as many transactions; also in place of one that is not ours.
func TestR4_TheTableIsLoadedBesideWhatNftDiesOf(t *testing.T) {
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		usual, beside := netns.New(t, "usual"), netns.New(t, "beside")
		want := manyRanges(f, p)
		load(t, usual, open(t, usual, f), want)
		for _, step := range []struct {
			name, before string
			found        guard.Repair
		}{
			{"into no table", "", guard.Repair{Table: true}},
			{"in place of one that others changed", "add chain TABLE forward { policy drop; }; flush chain TABLE from-pods; add set TABLE more { type mark; }; delete element TABLE pod-ranges { " + p.NodePods.String() + " }", guard.Repair{Rules: true}},
		} {
			t.Run(step.name, func(t *testing.T) {
				unload(t, beside, f)
				if step.before != "" {
					beside.Run(t, "nft", strings.ReplaceAll(step.before, "TABLE", f.String()+" "+guard.TableName))
				}
				wired.Do(t, beside, func() error { return deadly(f) })
				if out, err := beside.Output("nft", "list", "tables"); err == nil {
					t.Skipf("this nft lists sets of expressions that it does not know: %s", out)
				}
				program := open(t, beside, f)
				n := wired.Commits(t, beside, func() {
					if found := load(t, beside, program, want); found != step.found {
						t.Errorf("found %+v, want %+v", found, step.found)
					}
				})
				if n != 2 {
					t.Errorf("%d transactions, want one of the table and one of its seal", n)
				}
				if found := load(t, beside, open(t, beside, f), want); !found.Nothing() {
					t.Errorf("the next load found %+v", found)
				}
				unload(t, beside, f)
				if diff := cmp.Diff(listing(t, usual, f), listing(t, beside, f)); diff != "" {
					t.Errorf("the table (-without it +beside it):\n%s", diff)
				}
			})
		}
	})
}

// unload deletes what nft dies of.
func unload(t *testing.T, ns *netns.NS, f nft.Family) {
	t.Helper()
	wired.Do(t, ns, func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		family := nftables.TableFamilyIPv4
		if f == nft.IPv6 {
			family = nftables.TableFamilyIPv6
		}
		table := conn.AddTable(&nftables.Table{Name: deadlyTable, Family: family})
		conn.DelTable(table)
		return conn.Flush()
	})
}
