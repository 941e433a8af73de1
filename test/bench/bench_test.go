package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestMain lets the tests start this executable as the daemon under measurement, as
// the program does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == subjectRole {
		if err := beSubject(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestQuantilesAreValuesOfTheList(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = 100 - i
	}
	for _, c := range []struct {
		name string
		list []int
		q    float64
		want int
	}{
		{"of nothing", nil, 0.5, 0},
		{"of one", []int{7}, 0.99, 7},
		{"median of two is the lower", []int{2, 1}, 0.5, 1},
		{"median of three", []int{3, 1, 2}, 0.5, 2},
		{"p99 of a hundred", hundred, 0.99, 99},
		{"p50 of a hundred", hundred, 0.5, 50},
		{"the largest", hundred, 1, 100},
		{"the smallest", hundred, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := quantile(c.list, c.q); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
	if hundred[0] != 100 {
		t.Error("the list was sorted in place")
	}
}

func TestFiguresReadWell(t *testing.T) {
	got := []string{
		short(0), short(999 * time.Nanosecond), short(9_990 * time.Nanosecond), short(31_240 * time.Nanosecond),
		short(280 * time.Millisecond), short(1500 * time.Millisecond), short(43 * time.Second),
		count(0), count(999), count(1000), count(1234567), megabytes(119_600_000),
	}
	want := []string{
		"0 ns", "999 ns", "9.99 µs", "31.2 µs", "280 ms", "1.50 s", "43.0 s",
		"0", "999", "1,000", "1,234,567", "120 MB",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTablesForPeopleAndForMarkdown(t *testing.T) {
	table := table{title: "Costs", header: []string{"what", "now"}}
	table.row("load", "9 µs")
	table.row("a change", "")
	table.note("tried %d times", 3)
	for _, c := range []struct {
		name     string
		markdown bool
		want     string
	}{
		{"for people", false, "Costs\n\n  what      now\n  load      9 µs\n  a change\n\n  tried 3 times\n\n"},
		{"as Markdown", true, "### Costs\n\n| what     | now  |\n| -------- | ---- |\n| load     | 9 µs |\n| a change |      |\n\n- tried 3 times\n\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got bytes.Buffer
			table.print(&got, c.markdown)
			if diff := cmp.Diff(c.want, got.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		peer bool
		want options
	}{
		{"none", nil, false, options{[]int{1000, 10000, 30000}, 1000, 20000, []string{"scale", "mix", "path", "hits", "localhost", "cni"}, false}},
		{"the peer by environment", nil, true, options{[]int{1000, 10000, 30000}, 1000, 20000, []string{"scale", "mix", "path", "hits", "localhost", "cni", "peer"}, false}},
		{"all", []string{"--sizes", "20, 50", "--changes", "10", "--connects=500", "--only", "path", "--peer", "--markdown"}, false,
			options{[]int{20, 50}, 10, 500, []string{"path", "peer"}, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parse(c.args, c.peer, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(options{})); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, c := range []struct{ args, want string }{
		{"--sizes ten", `"ten"`},
		{"--sizes 19", `"19"`},
		{"--changes 0", "--changes: 0"},
		{"--connects 3", "--connects: 3"},
		{"--only speed", `"speed"`},
		{"1000", `"1000"`},
	} {
		t.Run("refuses "+c.args, func(t *testing.T) {
			_, err := parse(strings.Fields(c.args), false, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one that names %s", err, c.want)
			}
		})
	}
}

func TestSamplesOfAMetric(t *testing.T) {
	const text = `# HELP ops_total Operations.
ops_total{family="IPv4",operation="add"} 12
ops_total{family="IPv6",operation="add"} 3
ops_total_more{family="IPv4"} 99
plain 1.5e+09
plainer 7
`
	want := []sample{
		{map[string]string{"family": "IPv4", "operation": "add"}, 12},
		{map[string]string{"family": "IPv6", "operation": "add"}, 3},
	}
	if diff := cmp.Diff(want, samples(text, "ops_total"), cmp.AllowUnexported(sample{})); diff != "" {
		t.Error(diff)
	}
	if got := samples(text, "plain"); len(got) != 1 || got[0].value != 1.5e9 {
		t.Errorf("got %v, want one sample of 1.5e9", got)
	}
}

func TestMemoryOfAProcess(t *testing.T) {
	got, err := parseMemory([]byte("Name:\toneruled\nVmHWM:\t   2048 kB\nVmRSS:\t   1024 kB\n"))
	if want := (memory{2 << 20, 1 << 20}); err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if _, err := parseMemory([]byte("Name:\tzombie\n")); err == nil {
		t.Error("a process without memory was not refused")
	}
	if m, err := memoryOf(os.Getpid()); err != nil || m.now < 1<<20 || m.peak < m.now {
		t.Errorf("got %v, %v for this process", m, err)
	}
}

func TestGoalsAreMarked(t *testing.T) {
	slow := 6 * time.Millisecond
	s := &scale{
		services: loadGoalAt,
		loads:    []load{{synced: time.Second}, {synced: 2 * time.Second}, {synced: time.Second, peak: 150e6}},
		replaced: series{event: []time.Duration{slow}},
		numbered: series{event: []time.Duration{slow / 2}},
		memory:   sizes{loaded: 130e6, settled: 100e6, peak: 110e6},
	}
	other := *s
	other.services = 1000
	var text bytes.Buffer
	scaleTable([]*scale{&other, s}).print(&text, true)
	got := strings.Join(strings.Fields(text.String()), " ") // without what only aligns
	for _, want := range []string{
		"| 1.00 s, 2.00 s | 1.00 s, 2.00 s reached | 1.50 s at 10,000 |",
		"replaced: event to kernel, p99 | 6.00 ms MISSED | 6.00 ms MISSED | 5.00 ms |",
		"less or more: event to kernel, p99 | 3.00 ms reached | 3.00 ms reached | 5.00 ms |",
		"| 130 MB | 130 MB MISSED | 120 MB at 10,000 |",
		"| 100 MB | 100 MB reached | 120 MB at 10,000 |",
		"| 150 MB | 150 MB MISSED | 120 MB at 10,000 |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}

func TestPeersAreCompared(t *testing.T) {
	ours := &bout{contender: "oneruled", changes: []time.Duration{time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond}, settled: 50e6, peak: 60e6}
	theirs := &bout{contender: "kube-proxy", changes: []time.Duration{200 * time.Millisecond}, settled: 100e6, peak: 90e6}
	ours.load, theirs.load = outside{began: time.Second, sent: time.Second}, outside{began: 12 * time.Second, sent: 11 * time.Second}
	ours.restart, theirs.restart = outside{began: time.Second}, outside{began: 500 * time.Millisecond}
	want := [][]string{
		{"first full load, from the start of the process", "1.00 s", "12.0 s", "12"},
		{"first full load, from the last object sent", "1.00 s", "11.0 s", "11"},
		{"restart over the loaded table, from the start of the process", "1.00 s", "500 ms", "0.5"},
		{"one endpoint replaced, event to kernel, p50", "2.00 ms", "200 ms", "100"},
		{"one endpoint replaced, event to kernel, max", "3.00 ms", "200 ms", "66.7"},
		{"RSS after load and changes", "50 MB", "100 MB", "2"},
		{"RSS, the highest ever", "60 MB", "90 MB", "1.5"},
	}
	if diff := cmp.Diff(want, peerTable("1,000 Services", ours, theirs).rows); diff != "" {
		t.Error(diff)
	}
}
