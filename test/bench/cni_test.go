package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"onerule/test/netns"
	"onerule/test/rig"
)

func TestGoalsOfThePluginAreMarked(t *testing.T) {
	of := func(d time.Duration) map[int][]time.Duration {
		m := map[int][]time.Duration{}
		for _, w := range waves() {
			m[w.pods] = []time.Duration{d, d, 2 * d}
		}
		return m
	}
	list := []wirer{{name: "ours"}, {name: "theirs"}, {name: "others"}}
	ms := time.Millisecond
	for _, c := range []struct {
		name                   string
		ours, theirs           calls
		add, del, most, shares string
	}{
		{"reached", calls{of(6 * ms), of(9 * ms)}, calls{of(10 * ms), of(9 * ms)}, "p50 at most 0.6 reached |", "p50 at most 1 reached |", "reached, p99 below 1 reached |", "0.60, 0.60"},
		{"missed", calls{of(11 * ms), of(10 * ms)}, calls{of(10 * ms), of(9 * ms)}, "p50 at most 0.6 MISSED |", "p50 at most 1 MISSED |", "MISSED, p99 below 1 MISSED |", "1.10, 1.10"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var text strings.Builder
			cniTable("at rest", list, []calls{c.ours, c.theirs, c.theirs}).print(&text, true)
			for line := range strings.Lines(text.String()) {
				want := ""
				switch {
				case strings.Contains(line, "ADD, 110 "):
					want = c.most
				case strings.Contains(line, "| ADD, "):
					want = c.add
				case strings.Contains(line, "| DEL, "):
					want = c.del
				}
				if got := strings.Join(strings.Fields(line), " "); !strings.Contains(got, want) {
					t.Errorf("got %s, want %s", got, want)
				}
			}
			if !strings.Contains(text.String(), c.shares) {
				t.Errorf("no %q in\n%s", c.shares, text.String())
			}
		})
	}
}

// One plugin stands for all: the others take minutes to build.
func TestPodsAreWiredAndLetGo(t *testing.T) {
	netns.Privileged(t)
	dir := t.TempDir()
	w := wirer{"onerule", rig.Binary(t, "onerule", "onerule/plugin/onerule"),
		`{"cniVersion": "1.0.0", "name": "bench", "type": "onerule", "dataDir": "` + dir + `", "ipam": {"ranges": [[{"subnet": "10.1.0.0/24"}]]}}`}
	f, err := openPodFloor(3, "/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	all, err := f.measure(t.Context(), []wirer{w}, []wave{{1, 2}, {3, 1}})
	if err != nil {
		t.Fatal(err)
	}
	for pods, want := range map[int]int{1: 2, 3: 3} {
		add, del := all[0].add[pods], all[0].del[pods]
		if len(add) != want || len(del) != want || median(add) <= 0 || median(del) <= 0 {
			t.Errorf("%d at once: got %v and %v, want %d times of each", pods, add, del, want)
		}
	}
	if left, err := os.ReadDir(dir + "/bench/attachments"); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	t.Run("a call that fails says why", func(t *testing.T) {
		w.config = "{"
		if _, err := f.call(w, "ADD", 0); err == nil || !strings.Contains(err.Error(), "decode the network configuration") {
			t.Errorf("got %v", err)
		}
	})
}

func TestServicesAreLoadedAgainAndAgain(t *testing.T) {
	netns.Privileged(t)
	f, err := openPodFloor(1, "/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	stop := f.loading(t.Context(), 20)
	rig.Eventually(t, "a table of Services", func() error {
		_, err := f.node.Output("nft", "list", "map", "ip", "onerule", "service-ips")
		return err
	})
	if loads, err := stop(); err != nil || loads < 1 {
		t.Errorf("got %d loads, %v", loads, err)
	}
}
