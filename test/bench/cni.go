package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// A wave is a number of pods that a runtime starts, or ends, at the same time; and how
// many waves of them are timed for each plugin.
type wave struct{ pods, turns int }

// waves are those that are measured; 110 pods are what a kubelet takes.
func waves() []wave { return []wave{{1, 60}, {10, 20}, {50, 8}, {110, 6}} }

// loadServices have 10 endpoints each: what is loaded again and again beside the pods.
const loadServices = 10_000

// A wirer is a CNI plugin with the configuration that it is called with.
type wirer struct {
	name    string
	program string
	config  string
}

// wirers are onerule and the reference plugins, all with addresses from files on the node
// and default routes of both families. The latter are built from a module of their own.
func wirers(ctx context.Context, dir string, say func(string, ...any)) ([]wirer, string, error) {
	ours, err := built("onerule")
	if err != nil {
		return nil, "", err
	}
	say("cni: building ptp, bridge and host-local")
	var paths []string
	for _, tool := range []string{"main/ptp", "main/bridge", "ipam/host-local"} {
		path, err := tooled(ctx, "test/reference", "github.com/containernetworking/plugins/plugins/"+tool)
		if err != nil {
			return nil, "", err
		}
		paths = append(paths, path)
	}
	ranges := func(n int) string {
		return fmt.Sprintf(`"ranges": [[{"subnet": "10.%d.0.0/20"}], [{"subnet": "fd00:%d::/112"}]]`, n, n)
	}
	hostLocal := func(n int) string {
		return fmt.Sprintf(`"ipam": {"type": "host-local", "dataDir": %q, %s, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`,
			filepath.Join(dir, "host-local"), ranges(n))
	}
	list := []wirer{
		{"onerule", ours, fmt.Sprintf(`"type": "onerule", "dataDir": %q, "ipam": {%s}`, filepath.Join(dir, "onerule"), ranges(1))},
		{"ptp + host-local", paths[0], `"type": "ptp", ` + hostLocal(2)},
		{"bridge + host-local", paths[1], `"type": "bridge", "bridge": "bench0", "isGateway": true, ` + hostLocal(3)},
	}
	for i := range list {
		list[i].config = fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "bench-%d", %s}`, i, list[i].config)
	}
	return list, filepath.Dir(paths[2]), nil
}

// built gives the path of an executable of ours.
func built(name string) (string, error) {
	bin := os.Getenv("ONERULE_BIN")
	if bin == "" {
		bin = "bin"
	}
	path, err := filepath.Abs(filepath.Join(bin, name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return "", fmt.Errorf("find %s (make build makes it): %w", name, err)
	}
	return path, nil
}

// tooled builds a tool from the module in a folder.
func tooled(ctx context.Context, folder, tool string) (string, error) {
	cmd := exec.CommandContext(ctx, "sh", "test/tools.sh", folder, tool)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build %s (this works at the top of the repository): %w", tool, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// calls are how long each ADD and each DEL of a wirer took, by the pods of a wave.
type calls struct{ add, del map[int][]time.Duration }

// A podFloor is a node and pods that wait to be wired. The same pods are wired by all, one
// after the other.
type podFloor struct {
	node     *netns.NS
	pods     []*netns.NS
	delegate string // CNI_PATH: where host-local is
}

func openPodFloor(pods int, delegate string) (*podFloor, error) {
	f := &podFloor{delegate: delegate}
	for i := range pods + 1 {
		ns, err := netns.Open(fmt.Sprint("pod ", i))
		if err == nil {
			f.pods = append(f.pods, ns)
			err = withoutDetection(ns)
		}
		if err != nil {
			f.close()
			return nil, err
		}
	}
	f.node, f.pods = f.pods[pods], f.pods[:pods]
	if err := f.uplink(); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// uplink gives the node default routes, as every node has them: onerule takes the MTU of
// the device that they leave by. The other end of the wire is a pod's, which nobody asks.
func (f *podFloor) uplink() error {
	return errors.Join(
		netns.Connect(f.node, "uplink", f.pods[0], "uplink"),
		f.node.AddAddr("uplink", "192.0.2.1/24", "2001:db8::1/64"),
		f.node.AddRoute("default", "192.0.2.2"), f.node.AddRoute("default", "2001:db8::2"))
}

// withoutDetection turns duplicate detection off, which takes the reference plugins a
// second or two for each pod: onerule never asks for it.
func withoutDetection(ns *netns.NS) error {
	return errors.Join(write(ns, "net/ipv6/conf/all/accept_dad", "0"), write(ns, "net/ipv6/conf/default/accept_dad", "0"))
}

func (f *podFloor) close() {
	for _, ns := range append(f.pods, f.node) {
		if ns != nil {
			_ = ns.Close()
		}
	}
}

// call runs a plugin once and gives the time from its start to its end, as a runtime
// waits for it. What it reads and writes are files: with pipes it would wait until this
// process is given a processor, which is nothing of the plugin's.
func (f *podFloor) call(w wirer, verb string, pod int) (took time.Duration, err error) {
	cmd := exec.Command(w.program)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + verb, fmt.Sprint("CNI_CONTAINERID=pod", pod),
		"CNI_NETNS=" + f.pods[pod].Path(), "CNI_IFNAME=eth0", "CNI_PATH=" + f.delegate,
	}
	in, out, err := streams(w.config)
	if err != nil {
		return 0, err
	}
	defer func() { _, _ = in.Close(), out.Close() }()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, out
	err = f.node.Do(func() error {
		start := monotonic()
		err := cmd.Run()
		took = monotonic() - start
		return err
	})
	if err != nil {
		said, _ := os.ReadFile(out.Name())
		return 0, fmt.Errorf("%s of pod %d by %s: %w: %s", verb, pod, w.name, err, said)
	}
	return took, nil
}

// holding makes a file without a name that has some text in it, and is read from its start.
func holding(text string) (*os.File, error) {
	fd, err := unix.MemfdCreate("bench", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), fmt.Sprint("/proc/self/fd/", fd))
	if _, err = f.WriteAt([]byte(text), 0); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// streams gives a plugin's standard input, and where it writes to.
func streams(config string) (in, out *os.File, err error) {
	if in, err = holding(config); err != nil {
		return nil, nil, err
	}
	if out, err = holding(""); err != nil {
		_ = in.Close()
		return nil, nil, err
	}
	return in, out, nil
}

// together calls a plugin for the first pods at once.
func (f *podFloor) together(w wirer, verb string, pods int) ([]time.Duration, error) {
	took, errs := make([]time.Duration, pods), make([]error, pods)
	var all sync.WaitGroup
	for i := range pods {
		all.Go(func() { took[i], errs[i] = f.call(w, verb, i) })
	}
	all.Wait()
	return took, errors.Join(errs...)
}

// measure lets the wirers take turns, and another one begin each time.
func (f *podFloor) measure(ctx context.Context, list []wirer, waves []wave) ([]calls, error) {
	all := make([]calls, len(list))
	for i := range all {
		all[i] = calls{map[int][]time.Duration{}, map[int][]time.Duration{}}
	}
	for _, wave := range waves {
		for turn := range wave.turns + 1 { // the first warms up
			for n := range list {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				i := (turn + n) % len(list)
				add, err := f.together(list[i], "ADD", wave.pods)
				if err != nil {
					return nil, err
				}
				del, err := f.together(list[i], "DEL", wave.pods)
				if err != nil {
					return nil, err
				}
				if turn > 0 {
					all[i].add[wave.pods] = append(all[i].add[wave.pods], add...)
					all[i].del[wave.pods] = append(all[i].del[wave.pods], del...)
				}
			}
		}
	}
	return all, nil
}

// loading loads a table of so many Services on the node again and again, until the
// returned function is called, which says how often it was.
func (f *podFloor) loading(ctx context.Context, services int) (stop func() (int, error)) {
	state := stateOf(newCluster(services))
	ctx, cancel := context.WithCancel(ctx)
	var loads int
	var failed error
	ended := make(chan struct{})
	go func() { // ends with the context
		defer close(ended)
		for ctx.Err() == nil && failed == nil {
			if failed = loadTable(context.WithoutCancel(ctx), f.node, state); failed == nil {
				loads++
				_, failed = f.node.Output("nft", "delete table ip onerule")
			}
		}
	}()
	return func() (int, error) {
		cancel()
		<-ended
		return loads, failed
	}
}

func measureCNI(ctx context.Context, say func(string, ...any)) (tables []*table, err error) {
	dir, err := os.MkdirTemp("", "onerule-bench-cni")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the plugins' state: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	list, delegate, err := wirers(ctx, dir, say)
	if err != nil {
		return nil, err
	}
	most := slices.MaxFunc(waves(), func(a, b wave) int { return a.pods - b.pods }).pods
	f, err := openPodFloor(most, delegate)
	if err != nil {
		return nil, err
	}
	defer f.close()
	say("cni: ADD and DEL on an idle node")
	idle, err := f.measure(ctx, list, waves())
	if err != nil {
		return nil, err
	}
	say("cni: ADD and DEL while %s Services are loaded", count(loadServices))
	stop := f.loading(ctx, loadServices)
	began := time.Now()
	busy, err := f.measure(ctx, list, waves())
	loads, failed := stop()
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	during := fmt.Sprintf("while a table of %s Services x %d endpoints is loaded and deleted in turns", count(loadServices), endpointsPerService)
	tables = []*table{cniTable("on an idle node", list, idle), cniTable(during, list, busy)}
	tables[1].note("%d loads in %s.", loads, short(time.Since(began)))
	return tables, nil
}
