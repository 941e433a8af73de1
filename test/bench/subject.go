package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"onerule/daemon"
	"onerule/daemon/config"
	"onerule/daemon/source"
	"onerule/nft"
	"onerule/test/netns"
)

// subjectRole is the first argument that makes this program a daemon under
// measurement.
const subjectRole = "be-measured"

// A report is a line that a subject writes to its standard output. One of the
// fields is set.
type report struct {
	Synced     time.Duration      `json:"synced,omitempty"` // when everything had been delivered
	Written    *written           `json:"written,omitempty"`
	Operations map[string]float64 `json:"operations,omitempty"`
	Freed      bool               `json:"freed,omitempty"`
}

// written says that changes are in the kernel.
type written struct {
	At      time.Duration `json:"at"`
	Took    time.Duration `json:"took"` // since the first of them came in
	Changes int           `json:"changes"`
}

// What a subject can be asked for, one line each.
const (
	askOperations = "operations"
	askFree       = "free"
)

// beSubject is a daemon that reports what it does until standard input ends.
func beSubject(args []string) error {
	flags := flag.NewFlagSet(subjectRole, flag.ContinueOnError)
	master := flags.String("master", "", "address of the API server")
	if err := flags.Parse(args); err != nil {
		return err
	}
	client, err := source.Connect(source.Connection{Master: *master, UserAgent: "bench"})
	if err != nil {
		return err
	}
	out := reporter{to: json.NewEncoder(os.Stdout)}
	daemon.SpareMemory()
	log := klog.Background()
	d, err := daemon.New(daemon.Config{
		Settings: config.Settings{
			Node: nodeName, MasqueradeBit: 14, ExternalIPs: true, SyncPeriod: 30 * time.Second,
			Detector: config.Detector{Mode: config.ClusterCIDR}, ClusterCIDRs: []netip.Prefix{podRange()},
		},
		Families: []nft.Family{nft.IPv4, nft.IPv6},
		Version:  "bench",
		Log:      log,
		Written: func(changes int, took time.Duration) {
			out.write(report{Written: &written{At: monotonic(), Took: took, Changes: changes}})
		},
	})
	if err != nil {
		return err
	}
	d.HostAddrs([]netip.Addr{nodeAddr()})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := d.Run(ctx); err != nil {
			log.Error(err, "the loop ended")
		}
	})
	running.Go(func() {
		if err := (source.API{Client: client, Node: nodeName, Log: log}).Run(ctx, sink{d, &out}); err != nil {
			log.Error(err, "the source ended")
		}
	})
	err = answer(os.Stdin, d, &out)
	cancel()
	running.Wait()
	return err
}

// sink notes when everything has been delivered.
type sink struct {
	*daemon.Daemon
	out *reporter
}

func (s sink) Synced() {
	at := monotonic()
	s.Daemon.Synced()
	s.out.write(report{Synced: at})
}

type reporter struct {
	mu sync.Mutex
	to *json.Encoder
}

func (r *reporter) write(what report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.to.Encode(what) // who does not listen any more is about to end us
}

func answer(in io.Reader, d *daemon.Daemon, out *reporter) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		switch lines.Text() {
		case askFree:
			debug.FreeOSMemory()
			out.write(report{Freed: true})
		case askOperations:
			answer := httptest.NewRecorder()
			d.MetricsHandler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
			sum := map[string]float64{}
			for _, s := range samples(answer.Body.String(), "onerule_nft_operations_total") {
				sum[s.labels["operation"]] += s.value
			}
			out.write(report{Operations: sum})
		default:
			return fmt.Errorf("asked for %q, which nobody understands", lines.Text())
		}
	}
	return lines.Err()
}

// A subject is a daemon in another process, as its parent sees it.
type subject struct {
	*process
	in      io.WriteCloser
	reports chan report
}

// startSubject starts a daemon in a namespace.
func startSubject(ns *netns.NS, master string) (*subject, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(self, subjectRole, "-master", master)
	s := &subject{reports: make(chan report, 64)}
	if s.in, err = cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("pipe to %s: %w", self, err)
	}
	r, w, err := os.Pipe() // not StdoutPipe: Wait would close it while we read
	if err != nil {
		return nil, fmt.Errorf("pipe from %s: %w", self, err)
	}
	cmd.Stdout = w
	s.process, err = spawn(ns, cmd)
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		return nil, err
	}
	go s.listen(r) // ends with the process
	return s, nil
}

func (s *subject) listen(r io.ReadCloser) {
	defer r.Close()
	lines := json.NewDecoder(r)
	for {
		var what report
		if lines.Decode(&what) != nil {
			return
		}
		s.reports <- what
	}
}

// patience is how long a subject may take for anything.
const patience = 2 * time.Minute

// await gives the next report of a sort.
func (s *subject) await(what string, is func(report) bool) (report, error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case r := <-s.reports:
			if is(r) {
				return r, nil
			}
		case <-s.ended:
			return report{}, s.failed()
		case <-late.C:
			return report{}, fmt.Errorf("no %s within %v; the daemon's last words:\n%s", what, patience, s.output)
		}
	}
}

// operations gives the operations in the kernel since the subject's start.
func (s *subject) operations() (map[string]float64, error) {
	fmt.Fprintln(s.in, askOperations)
	r, err := s.await("operations", func(r report) bool { return r.Operations != nil })
	return r.Operations, err
}

// free makes the subject give back all the memory that it can.
func (s *subject) free() error {
	fmt.Fprintln(s.in, askFree)
	_, err := s.await("answer", func(r report) bool { return r.Freed })
	return err
}

// written waits for changes to be in the kernel.
func (s *subject) written() (written, error) {
	r, err := s.await("change in the kernel", func(r report) bool { return r.Written != nil })
	if err != nil {
		return written{}, err
	}
	return *r.Written, nil
}
