package network

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/neighbours"
)

func TestD38_NearlyFullTablesAreTold(t *testing.T) {
	type tables = map[neighbours.Family]neighbours.Table
	none := func(neighbours.Family, string) (int, error) { return 0, nil }
	many := func(neighbours.Family, string) (int, error) { return 300, nil }
	unknown := func(neighbours.Family, string) (int, error) { return 0, errors.New("no answer") }
	for _, c := range []struct {
		name        string
		before, now tables
		permanent   func(neighbours.Family, string) (int, error)
		want        []string
	}{
		{"four fifths", nil, tables{neighbours.IPv4: {Entries: 800, Limit: 1000}}, none, nil},
		{"more than that", nil, tables{neighbours.IPv4: {Entries: 801, Limit: 1000}}, none, []string{"the table of IPv4 neighbours is nearly full"}},
		{"more, but permanent ones", nil, tables{neighbours.IPv4: {Entries: 900, Limit: 1000}}, many, nil},
		{"more than that with permanent ones", nil, tables{neighbours.IPv6: {Entries: 1200, Limit: 1000}}, many, []string{"the table of IPv6 neighbours is nearly full"}},
		{"where nobody says how many are permanent", nil, tables{neighbours.IPv6: {Entries: 1200, Limit: 1000}}, unknown, nil},
		{"without a limit", nil, tables{neighbours.IPv4: {Entries: 90000}}, none, nil},
		{"refused before", tables{neighbours.IPv4: {Refused: 4}}, tables{neighbours.IPv4: {Refused: 4}}, none, nil},
		{"refused before anybody looked", nil, tables{neighbours.IPv4: {Refused: 4}}, none, nil},
		{"refused since", tables{neighbours.IPv4: {Refused: 4}}, tables{neighbours.IPv4: {Refused: 5}}, none, []string{"the table of IPv4 neighbours is full"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, crowded(c.before, c.now, c.permanent)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// The files are those of a machine's first network namespace, which no test has.
func TestD38_TablesReachMetricsEventsAndLog(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	const names = "entries table_fulls\n"
	write("stat/arp_cache", names+"00002000 0\n")
	write("sys/ipv4/neigh/default/gc_thresh1", "128")
	write("sys/ipv4/neigh/default/gc_thresh2", "512")
	write("sys/ipv4/neigh/default/gc_thresh3", "1024")
	l := &listener{}
	r := l.reporter("a")
	r.network.cfg.Sysctls, r.network.cfg.NeighbourStats = filepath.Join(dir, "sys"), filepath.Join(dir, "stat")
	r.network.raiseNeighbours()
	r.look()
	r.look()
	got := r.network.Sample().Neighbours["IPv4"]
	if got.Entries != 8192 || got.Limit != 8192 {
		t.Errorf("metrics are %+v, want 8192 of a limit that was raised to that", got)
	}
	write("stat/arp_cache", names+"00000010 0\n")
	r.look()
	write("stat/arp_cache", names+"00000010 2\n")
	r.look()
	const more = " in all network namespaces: whoever is not in it can't be reached when it is full; raise gc_thresh3"
	want := []string{
		"a NeighboursNearlyFull: the table of IPv4 neighbours is nearly full," + more,
		"a NeighboursNearlyFull: the table of IPv4 neighbours is full," + more,
	}
	if diff := cmp.Diff(want, l.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
