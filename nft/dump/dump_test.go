package dump

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// message gives a netlink message with the sequence number seq.
func message(kind, flags uint16, seq uint32, body ...byte) []byte {
	ne := binary.NativeEndian
	b := ne.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = ne.AppendUint16(b, kind)
	b = ne.AppendUint16(b, flags)
	b = ne.AppendUint32(b, seq)
	b = append(ne.AppendUint32(b, 0), body...)
	return append(b, make([]byte, Align4(len(b))-len(b))...)
}

func errno(e unix.Errno) []byte {
	return binary.NativeEndian.AppendUint32(nil, uint32(-int32(e)))
}

// A listing that breaks off says why in its last message.
func TestAListingThatBreaksOffIsAnError(t *testing.T) {
	for _, kind := range []uint16{unix.NLMSG_DONE, unix.NLMSG_ERROR} {
		for _, want := range []error{nil, unix.EINTR, unix.ENOENT} {
			var code unix.Errno
			_ = errors.As(want, &code)
			c := &Conn{seq: 1}
			ended, err := c.messages(message(kind, 0, 1, errno(code)...), func([]byte) error { return nil })
			if !ended || !errors.Is(err, want) {
				t.Errorf("kind %d, %v: ended %v, error %v", kind, want, ended, err)
			}
		}
	}
}

func TestMessagesOfOneDatagram(t *testing.T) {
	const kind = 1 << 8
	for _, c := range []struct {
		name        string
		datagram    []byte
		bodies      []string
		done        bool
		interrupted bool
		err         string
	}{
		{"two messages, more to come", slices.Concat(message(kind, 0, 7, 'a'), message(kind, 0, 7, 'b', 'c')), []string{"a", "bc"}, false, false, ""},
		{"the last one", slices.Concat(message(kind, 0, 7, 'a'), message(unix.NLMSG_DONE, 0, 7, errno(0)...)), []string{"a"}, true, false, ""},
		{"A12.6: changed meanwhile", slices.Concat(message(kind, unix.NLM_F_DUMP_INTR, 7, 'a'), message(kind, 0, 7, 'b')), []string{"a", "b"}, false, true, ""},
		{"A12.6: changed, said at the end", message(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, 7, errno(0)...), nil, true, true, ""},
		{"left over from the listing before", slices.Concat(message(kind, unix.NLM_F_DUMP_INTR, 6, 'x'), message(unix.NLMSG_DONE, 0, 6, errno(unix.EINTR)...), message(kind, 0, 7, 'a')), []string{"a"}, false, false, ""},
		{"longer than the datagram", message(kind, 0, 7, 'a')[:16], nil, false, false, "netlink message of an impossible length"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := &Conn{seq: 7}
			var bodies []string
			done, err := conn.messages(c.datagram, func(b []byte) error {
				bodies = append(bodies, string(b))
				return nil
			})
			text := ""
			if err != nil {
				text = err.Error()
			}
			if done != c.done || conn.Interrupted() != c.interrupted || text != c.err {
				t.Errorf("done %v, interrupted %v, error %q; want %v, %v, %q", done, conn.Interrupted(), text, c.done, c.interrupted, c.err)
			}
			if diff := cmp.Diff(c.bodies, bodies); diff != "" {
				t.Errorf("bodies (-want +got): %s", diff)
			}
		})
	}
}

// A listing of several datagrams arrives whole, and one can be given up.
func TestListingsAndAnswersOfTheKernel(t *testing.T) {
	ns := netns.New(t, "node")
	ns.Run(t, "sh", "-c", `for i in $(seq 500); do echo "add table ip table-$i"; done | nft -f -`)
	enough := errors.New("enough")
	header := []byte{unix.AF_INET, unix.NFNETLINK_V0, 0, 0}
	const getTable = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETTABLE
	seen := 0
	for _, c := range []struct {
		name string
		ask  func(*Conn) error
		want error
	}{
		{"a listing", func(c *Conn) error { return c.Run(getTable, header, func([]byte) error { seen++; return nil }) }, nil},
		{"one that the reader gives up", func(c *Conn) error { return c.Run(getTable, header, func([]byte) error { return enough }) }, enough},
		{"a table that is missing", func(c *Conn) error {
			return c.Ask(getTable, slices.Concat(header, attribute(unix.NFTA_TABLE_NAME, "none\x00")), func([]byte) error { return nil })
		}, unix.ENOENT},
	} {
		err := ns.Do(func() error {
			conn, err := Open()
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			conn.interrupted = true // by an earlier listing
			err = c.ask(conn)
			if conn.Interrupted() {
				t.Errorf("%s: interrupted, as the one before", c.name)
			}
			return err
		})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
	if seen != 500 {
		t.Errorf("the listing has %d tables, want 500", seen)
	}
}

func attribute(kind uint16, value string) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofNlAttr+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, Align4(len(b))-len(b))...)
}

func TestAttributesAreWalkedWithoutTheirFlags(t *testing.T) {
	b := slices.Concat(attribute(1|unix.NLA_F_NESTED, "abcde"), attribute(2|unix.NLA_F_NET_BYTEORDER, ""), attribute(3, "f"))
	got := map[uint16]string{}
	if err := EachAttr(b, func(kind uint16, v []byte) error { got[kind] = string(v); return nil }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[uint16]string{1: "abcde", 2: "", 3: "f"}, got); diff != "" {
		t.Errorf("attributes (-want +got): %s", diff)
	}
	if err := EachAttr(b[:6], func(uint16, []byte) error { return nil }); err == nil {
		t.Error("an attribute that is cut off: got no error")
	}
}

// What the kernel sends is taken apart without a panic, whatever it is.
func FuzzMessages(f *testing.F) {
	f.Add(message(3, 2, 1, errno(0)...))
	f.Add([]byte(strings.Repeat("\x08\x00\x01\x80\x04\x00\x01\x00", 8)))
	f.Fuzz(func(_ *testing.T, b []byte) {
		c := &Conn{seq: 1}
		_, _ = c.messages(b, func(body []byte) error {
			return EachAttr(body, func(_ uint16, v []byte) error {
				return EachAttr(v, func(uint16, []byte) error { return nil })
			})
		})
	})
}
