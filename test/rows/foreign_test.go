package rows_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/test/addr"
)

// foreignTests are the rows about tables of others.
func foreignTests() map[string]func(*testing.T, *world) {
	return map[string]func(*testing.T, *world){"R4": testUnreadableTables}
}

// An unreadable set is one that this nft has no words for: what a newer one noted about it,
// or what no nft would.
type unreadable struct {
	name     string
	keyType  uint32
	keyLen   uint32
	userdata []byte
}

// expression is the note of what expression a key is of: its number and its details. A
// note is a type, a length and a value.
func expression(number uint32, details ...byte) []byte {
	inner := append(binary.NativeEndian.AppendUint32([]byte{0, 4}, number), append([]byte{1, byte(len(details))}, details...)...)
	return append([]byte{3, byte(len(inner))}, inner...)
}

// deadly is a set of an expression that comes with a newer nft: nft 1.0.6 dies of it,
// whatever it is asked to do, for its own table too.
func deadly() unreadable { return unreadable{"unknown-expression", 7, 4, expression(9999)} }

// unreadables are sets that nft has no words for.
func unreadables() []unreadable {
	return []unreadable{
		deadly(),
		{"unknown-type", 0xfffff, 8, nil},
		{"expression-without-details", 7, 4, expression(10)},
		{"expression-cut-off", 7, 4, expression(10, 0, 200, 1)},
		{"concatenation-cut-off", 7<<6 | 41, 20, expression(12, 5, 0)},
		{"garbage", 7, 4, []byte{250, 200, 1, 2, 3}},
	}
}

// table is the name of the table that holds such a set.
func (u unreadable) table() string { return "foreign-" + u.name }

// message gives one of nftables, or the begin or end of several.
func message(kind uint16, flags netlink.HeaderFlags, header [4]byte, attrs ...netlink.Attribute) (netlink.Message, error) {
	data, err := netlink.MarshalAttributes(attrs)
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | flags},
		Data:   append(header[:], data...),
	}, err
}

// load makes the table and the set as somebody else's program would.
func (u unreadable) load(family byte) error {
	attrs := []netlink.Attribute{
		text(unix.NFTA_SET_TABLE, u.table()), text(unix.NFTA_SET_NAME, u.name), number(unix.NFTA_SET_ID, 1),
		number(unix.NFTA_SET_KEY_TYPE, u.keyType), number(unix.NFTA_SET_KEY_LEN, u.keyLen),
	}
	if u.userdata != nil {
		attrs = append(attrs, netlink.Attribute{Type: unix.NFTA_SET_USERDATA, Data: u.userdata})
	}
	err := transact(unix.NFT_MSG_NEWTABLE, netlink.Create, family, text(unix.NFTA_TABLE_NAME, u.table()))
	if err == nil {
		err = transact(unix.NFT_MSG_NEWSET, netlink.Create, family, attrs...)
	}
	return err
}

func (u unreadable) unload(family byte) error {
	return transact(unix.NFT_MSG_DELTABLE, 0, family, text(unix.NFTA_TABLE_NAME, u.table()))
}

func text(kind uint16, value string) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: append([]byte(value), 0)}
}

func number(kind uint16, n uint32) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: binary.BigEndian.AppendUint32(nil, n)}
}

// transact sends one message to nftables, as a transaction.
func transact(kind uint16, flags netlink.HeaderFlags, family byte, attrs ...netlink.Attribute) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	batch := [4]byte{3: unix.NFNL_SUBSYS_NFTABLES}
	begin, err1 := message(unix.NFNL_MSG_BATCH_BEGIN, 0, batch)
	change, err2 := message(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags|netlink.Acknowledge, [4]byte{family}, attrs...)
	end, err3 := message(unix.NFNL_MSG_BATCH_END, 0, batch)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if _, err = c.SendMessages([]netlink.Message{begin, change, end}); err == nil {
		_, err = c.Receive()
	}
	return err
}

func (w *world) inNode(t *testing.T, f func() error) {
	t.Helper()
	if err := w.h.Node.Do(f); err != nil {
		t.Fatal(err)
	}
}

// unreadable loads the set of a table of others, until the test ends.
func (w *world) unreadable(t *testing.T, u unreadable, family byte) {
	t.Helper()
	w.inNode(t, func() error { return u.load(family) })
	t.Cleanup(func() { w.inNode(t, func() error { return u.unload(family) }) })
}

// Whatever tables of others hold, ours is loaded anew, changed and read back.
func testUnreadableTables(t *testing.T, w *world) {
	usual := w.flags
	w.d.Stop()
	for _, family := range []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6, unix.NFPROTO_INET} {
		for _, u := range unreadables() {
			w.unreadable(t, u, family)
		}
	}
	_, err := w.h.Node.Output("nft", "list", "ruleset")
	t.Logf("what this nft says of them: %v", err)
	for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
		w.inNode(t, func() error { return nft.DeleteTable(family) })
	}
	w.restart(t, usual...)
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1)))
		w.reached(t, p, clusterPlaces(p)[0], ports(8080, p.Pod(1))...)
		w.put(t, "web.yaml", web(p), webSlice(p, three(p)...))
		w.reached(t, p, clusterPlaces(p)[0], ports(8080, three(p)...)...)
	})
	w.restart(t, usual...)
	for _, operation := range []string{"transaction", "ruleset", "add", "delete"} {
		if n := w.d.Metric("onerule_nft_operations_total", "operation", operation); n != 0 {
			t.Errorf("a restart does %v operations of kind %s", n, operation)
		}
	}
	w.flags = nil // the usual one comes back afterwards
}
