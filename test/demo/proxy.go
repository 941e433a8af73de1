package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// nodeName is what the manifests call the node.
const nodeName = "node"

// A proxy is a running oneruled.
type proxy struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how, after done
}

// arguments are what oneruled is started with.
func (w *world) arguments() []string {
	v4, v6 := families()[0].plan, families()[1].plan
	return []string{
		"--manifests=" + w.manifests(),
		"--hostname-override=" + nodeName,
		fmt.Sprintf("--cluster-cidr=%s,%s", v4.ClusterCIDR, v6.ClusterCIDR),
	}
}

// startProxy starts oneruled in the node's namespace and waits until it says that
// everything is in the kernel. It gives the time that took.
func (w *world) startProxy(ctx context.Context) (time.Duration, error) {
	log, err := os.OpenFile(w.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, fmt.Errorf("open the daemon's log: %w", err)
	}
	defer log.Close()
	p := &proxy{cmd: exec.Command(w.daemon, w.arguments()...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// In a process group of its own Ctrl-C does not reach it: we end it. If we are
	// killed, so is it.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	start := time.Now()
	go func() {
		defer close(p.done)
		// It is waited for on the thread that started it, since the end of that
		// thread would send the signal.
		p.err = w.node.ns.Do(func() error {
			err := p.cmd.Start()
			started <- err
			if err != nil {
				return err
			}
			return p.cmd.Wait()
		})
	}()
	select {
	case err = <-started:
	case <-p.done:
		err = p.err // the namespace could not be entered
	}
	if err != nil {
		return 0, fmt.Errorf("start oneruled: %w", err)
	}
	w.proxy = p
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-ctx.Done():
		case <-p.done:
			cancel(fmt.Errorf("it ended (%w) and said: %s", p.err, w.lastWords()))
		}
	}()
	return eventually(ctx, "oneruled is healthy", start, func() (bool, error) { return w.healthy(ctx) })
}

func (w *world) log() string { return filepath.Join(w.dir, "oneruled.log") }

// healthy asks oneruled. An error says why it is not, or not yet.
func (w *world) healthy(ctx context.Context) (bool, error) {
	body, err := w.ask(ctx, 10256, "/healthz")
	return err == nil && body != "", err
}

// lastWords is the end of the daemon's log.
func (w *world) lastWords() string {
	b, err := os.ReadFile(w.log())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}

// kill ends oneruled as the kernel does when memory runs out.
func (w *world) kill() error {
	p := w.proxy
	w.proxy = nil
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill oneruled: %w", err)
	}
	<-p.done
	return nil
}

// ask gets a page of oneruled's, from within the node.
func (w *world) ask(ctx context.Context, port uint16, path string) (string, error) {
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s%s", at, path), nil)
	if err != nil {
		return "", fmt.Errorf("ask oneruled for %s: %w", path, err)
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: w.dialNode}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", fmt.Errorf("ask oneruled for %s: %w", path, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	if err != nil {
		return "", fmt.Errorf("ask oneruled for %s: %w", path, err)
	}
	return string(body), nil
}

// dialNode dials in the node's namespace, where the socket stays.
func (w *world) dialNode(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := w.node.ns.Do(func() (err error) {
		conn, err = (&net.Dialer{Timeout: patience}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// written is how many elements oneruled says that it has added and deleted since it
// began, and how many times it ran nft.
func (w *world) written(ctx context.Context) (elements, rulesets int, err error) {
	page, err := w.ask(ctx, 10249, "/metrics")
	if err != nil {
		return 0, 0, err
	}
	counts, err := operations(page)
	return counts["add"] + counts["delete"], counts["ruleset"], err
}

// operations sums onerule_nft_operations_total over the families.
func operations(page string) (map[string]int, error) {
	sums := map[string]int{}
	for lines := bufio.NewScanner(strings.NewReader(page)); lines.Scan(); {
		rest, ours := strings.CutPrefix(lines.Text(), "onerule_nft_operations_total{")
		if !ours {
			continue
		}
		labels, value, _ := strings.Cut(rest, "} ")
		_, operation, _ := strings.Cut(labels, `operation="`)
		operation, _, found := strings.Cut(operation, `"`)
		n, err := strconv.ParseFloat(value, 64)
		if !found || err != nil {
			return nil, fmt.Errorf("read metrics: %q has no operation and number", lines.Text())
		}
		sums[operation] += int(n)
	}
	for _, operation := range []string{"add", "delete", "ruleset"} {
		if _, found := sums[operation]; !found {
			return nil, fmt.Errorf("read metrics: no onerule_nft_operations_total of operation %q", operation)
		}
	}
	return sums, nil
}
