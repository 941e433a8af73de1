package plugin

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, t := range texts {
		all = append(all, netip.MustParseAddr(t))
	}
	return all
}

func spanOf(first, last, gateway string) span {
	return span{netip.MustParseAddr(first), netip.MustParseAddr(last), netip.MustParseAddr(gateway)}
}

func TestChoose(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	two := rangeSet{spanOf("10.1.0.1", "10.1.0.3", "10.1.0.1"), spanOf("10.2.0.1", "10.2.0.2", "10.2.0.1")}
	for _, tc := range []struct {
		name     string
		taken    []netip.Addr
		released []formerLease
		want     string // that is asked for
		got      string
		code     uint
	}{
		{name: "C57: never the gateway", got: "10.1.0.2"},
		{name: "C57: the next one", taken: addrs("10.1.0.2"), got: "10.1.0.3"},
		{name: "the next range", taken: addrs("10.1.0.2", "10.1.0.3"), got: "10.2.0.2"},
		{name: "C57: none is left", taken: addrs("10.1.0.2", "10.1.0.3", "10.2.0.2"), code: codePoolExhausted},
		{name: "addresses of others do not matter", taken: addrs("10.9.0.2", "fd00::2"), released: []formerLease{{addrs("10.9.0.3")[0], ago(time.Hour)}}, got: "10.1.0.2"},
		{
			name:     "one that was never given, before any that was",
			released: []formerLease{{addrs("10.1.0.2")[0], ago(time.Hour)}, {addrs("10.2.0.2")[0], ago(time.Minute)}}, got: "10.1.0.3",
		},
		{
			name: "the one that was released first", taken: addrs("10.1.0.2"),
			released: []formerLease{{addrs("10.2.0.2")[0], ago(time.Hour)}, {addrs("10.1.0.3")[0], ago(time.Minute)}}, got: "10.2.0.2",
		},
		{
			name: "not one that was released and taken again", taken: addrs("10.2.0.2", "10.1.0.2"),
			released: []formerLease{{addrs("10.2.0.2")[0], ago(time.Hour)}, {addrs("10.1.0.3")[0], ago(time.Minute)}}, got: "10.1.0.3",
		},
		{
			name: "C11: only such as were released just now", taken: addrs("10.1.0.2", "10.1.0.3"),
			released: []formerLease{{addrs("10.2.0.2")[0], ago(4 * time.Second)}}, code: 11,
		},
		{
			name: "at the end of the quarantine", taken: addrs("10.1.0.2", "10.1.0.3"),
			released: []formerLease{{addrs("10.2.0.2")[0], ago(5 * time.Second)}}, got: "10.2.0.2",
		},
		{
			name: "a clock that was set back does not block an address", taken: addrs("10.1.0.2", "10.1.0.3"),
			released: []formerLease{{addrs("10.2.0.2")[0], now.Add(time.Hour)}}, got: "10.2.0.2",
		},
		{name: "C30: one that was asked for", want: "10.2.0.2", got: "10.2.0.2"},
		{name: "C30: also within the quarantine", want: "10.2.0.2", released: []formerLease{{addrs("10.2.0.2")[0], now}}, got: "10.2.0.2"},
		{name: "C30: not one that is taken", want: "10.2.0.2", taken: addrs("10.2.0.2"), code: codeAddressUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &pool{taken: map[netip.Addr]bool{}, released: tc.released}
			for _, a := range tc.taken {
				p.taken[a] = true
			}
			want, _ := netip.ParseAddr(tc.want)
			got, err := p.choose(two, want, now, 5*time.Second)
			var short *shortage
			if tc.code != 0 {
				if !errors.As(err, &short) || short.code != tc.code {
					t.Errorf("got %v and %v, want code %d", got, err, tc.code)
				}
				return
			}
			if err != nil || got != netip.MustParseAddr(tc.got) {
				t.Errorf("got %v and %v, want %s", got, err, tc.got)
			}
		})
	}
}

func TestSizes(t *testing.T) {
	for _, tc := range []struct {
		set         rangeSet
		size, spare int64
	}{
		{rangeSet{spanOf("10.1.0.1", "10.1.0.2", "10.1.0.1")}, 1, 0},
		{rangeSet{spanOf("10.1.0.1", "10.1.0.6", "10.1.0.1")}, 5, 1},
		{rangeSet{spanOf("10.1.0.1", "10.1.0.254", "10.1.0.1")}, 253, 3},
		{rangeSet{spanOf("10.1.0.10", "10.1.0.19", "10.1.0.1"), spanOf("10.2.0.0", "10.2.1.255", "10.2.0.1")}, 521, 4},
		{rangeSet{spanOf("fd00::1", "fd00::ffff", "fd00::1")}, 65534, 4},
	} {
		t.Run(tc.set.String(), func(t *testing.T) {
			if got := tc.set.size().Int64(); got != tc.size {
				t.Errorf("size: got %d, want %d", got, tc.size)
			}
			if got := tc.set.spare(); got != tc.spare {
				t.Errorf("spare: got %d, want %d", got, tc.spare)
			}
		})
	}
}

func TestFormerLeases(t *testing.T) {
	s := &store{dir: t.TempDir()}
	if err := os.MkdirAll(s.releasedDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	note := func(name string) {
		if err := os.WriteFile(s.releasedDir()+"/"+name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := func(sec int64) time.Time { return time.Unix(sec, 0) }
	note("no note")
	note(releasedName(addrs("10.1.0.2")[0], at(50)))
	note(releasedName(addrs("10.1.0.2")[0], at(10)))
	note(releasedName(addrs("fd00::2")[0], at(20)))
	want := []formerLease{{addrs("fd00::2")[0], at(20)}, {addrs("10.1.0.2")[0], at(50)}}
	for _, name := range []string{"each address once, by its last release", "the rest is forgotten"} {
		t.Run(name, func(t *testing.T) {
			got, err := s.formerLeases()
			if err != nil {
				t.Fatal(err)
			}
			same := cmp.Comparer(func(a, b formerLease) bool { return a.addr == b.addr && a.at.Equal(b.at) })
			if d := cmp.Diff(want, got, same); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
	t.Run("no more than are remembered", func(t *testing.T) {
		a := netip.MustParseAddr("10.7.0.0")
		for i := range rememberedReleases {
			a = a.Next()
			note(releasedName(a, at(int64(100+i))))
		}
		got, err := s.formerLeases()
		if err != nil || len(got) != rememberedReleases || got[0].addr != addrs("10.7.0.1")[0] {
			t.Errorf("got %d, from %v, and %v", len(got), got[:1], err)
		}
		names, err := fileNames(s.releasedDir())
		if err != nil || len(names) != rememberedReleases {
			t.Errorf("got %d notes and %v", len(names), err)
		}
	})
}
