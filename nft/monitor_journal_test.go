package nft

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/nft/dump"
)

// message spells an event as the kernel does.
func message(kind uint8, port uint32, family uint8, attrs ...[]byte) []byte {
	payload := dump.Request(family, attrs...)
	b := make([]byte, unix.SizeofNlMsghdr, 256)
	ne := binary.NativeEndian
	ne.PutUint32(b, uint32(unix.SizeofNlMsghdr+len(payload)))
	ne.PutUint16(b[4:], unix.NFNL_SUBSYS_NFTABLES<<8|uint16(kind))
	ne.PutUint32(b[12:], port)
	return append(b, payload...)
}

func deleted(port uint32, table, set string) []byte {
	return message(unix.NFT_MSG_DELSETELEM, port, unix.NFPROTO_IPV4,
		dump.Name(unix.NFTA_SET_ELEM_LIST_TABLE, table), dump.Name(unix.NFTA_SET_ELEM_LIST_SET, set))
}

func ends(port, gen uint32) []byte {
	return message(unix.NFT_MSG_NEWGEN, port, unix.AF_UNSPEC,
		dump.Attr(unix.NFTA_GEN_ID, binary.BigEndian.AppendUint32(nil, gen)), dump.Name(unix.NFTA_GEN_PROC_NAME, "nft"))
}

// What no kernel can be made to say at will.
func TestJournal(t *testing.T) {
	const ours, theirs = 7, 9
	change := func(port, gen uint32) []byte {
		return append(deleted(port, TableName, "service-ips"), ends(port, gen)...)
	}
	for name, test := range map[string]struct {
		read func(j *journal)
		want string
	}{
		"one of ours":           {func(j *journal) { j.read(change(ours, 101)) }, ""},
		"one of theirs":         {func(j *journal) { j.read(change(theirs, 101)) }, "elements-deleted x1"},
		"from before our time":  {func(j *journal) { j.read(change(theirs, 100)) }, ""},
		"not ended yet":         {func(j *journal) { j.read(deleted(theirs, TableName, "service-ips")) }, ""},
		"a generation missing":  {func(j *journal) { j.read(change(ours, 101)); j.read(change(ours, 103)) }, "lost x1"},
		"an end missing":        {func(j *journal) { j.read(deleted(theirs, "foreign", "x")); j.read(change(ours, 101)) }, "lost x1"},
		"an end of another one": {func(j *journal) { j.read(deleted(theirs, "foreign", "x")); j.read(ends(ours, 101)) }, "lost x1"},
		"half a message":        {func(j *journal) { j.read(change(ours, 101)[:70]) }, "lost x1"},
		"an end without number": {func(j *journal) { j.read(message(unix.NFT_MSG_NEWGEN, ours, 0)) }, "lost x1"},
		"after all generations": {func(j *journal) { j.gen = math.MaxUint32; j.read(change(ours, 1)) }, ""},
		"by the kernel itself":  {func(j *journal) { j.read(deleted(0, TableName, "service-ips")) }, "elements-deleted x1"},
		"by the kernel in a foreign table, in the middle of ours": {func(j *journal) {
			j.read(deleted(ours, TableName, "service-ips"))
			j.read(deleted(0, "foreign", "x"))
			j.read(change(ours, 101))
		}, ""},
		"gone on after a loss": {func(j *journal) { j.drained(); j.read(change(ours, 110)); j.read(change(ours, 111)) }, "lost x1"},
		"a loss again":         {func(j *journal) { j.drained(); j.take(); j.read(change(ours, 110)); j.read(change(ours, 112)) }, "lost x1"},
		"a port that is not ours any more": {func(j *journal) {
			j.disown(ours, 101)
			j.read(change(ours, 101))
			j.read(change(ours, 102))
		}, "elements-deleted x1"},
		"a port that is ours until its events are read": {func(j *journal) { j.disown(ours, 102); j.read(change(ours, 101)); j.read(change(ours, 102)) }, ""},
		"a run of nft whose events are lost": {func(j *journal) {
			w := j.open(target{family: IPv4}, 100)
			j.read(change(theirs, 101))
			j.close(w, 103, true)
			j.drained()
		}, "lost x1"},
		"a run of nft that fails": {func(j *journal) {
			w := j.open(target{family: IPv4}, 100)
			j.read(change(theirs, 101))
			j.close(w, 101, false)
		}, "elements-deleted x1"},
		"one of theirs behind a run of nft": {func(j *journal) {
			j.close(j.open(target{family: IPv4}, 100), 101, true)
			j.read(change(theirs, 101))
			j.read(change(theirs, 102))
		}, "elements-deleted x1"},
		"one of theirs before a run of nft": {func(j *journal) {
			j.close(j.open(target{family: IPv4}, 101), 102, true)
			j.read(change(theirs, 101))
			j.read(change(theirs, 102))
		}, "elements-deleted x1"},
		"two runs of nft, read late": {func(j *journal) {
			j.close(j.open(target{family: IPv4}, 100), 101, true)
			j.close(j.open(target{family: IPv4}, 101), 102, true)
			j.read(change(theirs, 101))
			j.read(change(8, 102))
		}, ""},
		"pins": {func(j *journal) {
			_, ports := pinMaps("local-", "1")
			j.read(deleted(theirs, TableName, ports))
			j.read(ends(theirs, 101))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJournal(100)
			j.own(ours)
			test.read(&j)
			var words []string
			for _, f := range j.take() {
				words = append(words, fmt.Sprintf("%s x%d", f.Kind, f.Count))
			}
			if diff := cmp.Diff(test.want, strings.Join(words, " ")); diff != "" {
				t.Errorf("told (-want +got): %s", diff)
			}
			for _, w := range j.windows {
				if w.closed {
					t.Errorf("window %+v is kept", w)
				}
			}
		})
	}
}

func TestForeignSaysItInASentence(t *testing.T) {
	for want, f := range map[string]Foreign{
		"elements-deleted in table ip6 onerule: 3, first of service-ips (by nft)": {Table: TableName, Family: IPv6, Kind: ElementsDeleted, Count: 3, First: "service-ips", By: "nft"},
		"table-deleted in table ip onerule-guard: 1 (by the kernel)":              {Table: "onerule-guard", Family: IPv4, Kind: TableDeleted, Count: 1},
		"events of nftables were lost: anything may have changed":                 {Kind: Lost, Count: 2},
	} {
		if got := f.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for k := range numKinds + 1 {
		if k.String() == "" {
			t.Errorf("kind %d has no word", k)
		}
	}
}

// Whatever comes in, the journal goes on.
func FuzzJournal(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{20, 0, 0, 0, 15, 10, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{28, 0, 0, 0, 13, 10, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0, 3, 0, 1, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		j := newJournal(100)
		j.read(b)
		j.read(append(deleted(9, TableName, "service-ips"), ends(9, next(j.gen))...))
		if list := j.take(); len(list) == 0 {
			t.Error("the change after it is not told")
		}
	})
}
