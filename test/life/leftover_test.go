package life_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	crowdSize = 100
	rounds    = 10
)

// crowd are pods that do nothing, behind a Service.
const crowd = `
apiVersion: v1
kind: Service
metadata: {name: crowd}
spec:
  clusterIP: 10.96.7.9
  selector: {app: crowd}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: crowd}
spec:
  replicas: 0
  selector: {matchLabels: {app: crowd}}
  template:
    metadata: {labels: {app: crowd}}
    spec:
      terminationGracePeriodSeconds: 1
      automountServiceAccountToken: false
      enableServiceLinks: false
      containers: [{name: pause, image: "localhost/pause:1", imagePullPolicy: Never}]
`

// comeAndGo scales pods up and down again and again, and compares all that a node has
// before and after.
func comeAndGo(t *testing.T, w *world, _ applications) {
	if err := w.Apply(t.Context(), crowd); err != nil {
		t.Fatal(err)
	}
	w.scaleCrowd(t, 2) // what is made once is
	w.scaleCrowd(t, 0)
	goOn(t, 75*time.Second) // and what lingers for a minute is gone
	before := w.settled(t)
	numbers := map[string]int{}
	for _, n := range w.Nodes() {
		rules, err := w.rules(n.Name())
		if err != nil {
			t.Fatal(err)
		}
		numbers[n.Name()] = strings.Count(strings.Join(rules, "\n"), "chain lb-tcp-")
	}
	for round := range rounds {
		start := time.Now()
		w.scaleCrowd(t, crowdSize)
		up := time.Since(start)
		w.wantCrowd(t)
		w.scaleCrowd(t, 0)
		t.Logf("round %d: %d pods were ready after %s, and gone after %s more", round+1, crowdSize,
			up.Round(time.Second), (time.Since(start) - up).Round(time.Second))
	}
	eventually(t, "nothing is left of pods that are gone", 3*time.Minute, func() error {
		after, err := w.snapshots()
		if err != nil {
			return err
		}
		if diff := cmp.Diff(before, after); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
	for _, n := range w.Nodes() {
		eventually(t, "rules for numbers of endpoints that nobody has go from "+n.Name(), 3*time.Minute, func() error {
			rules, err := w.rules(n.Name())
			if got := strings.Count(strings.Join(rules, "\n"), "chain lb-tcp-"); err == nil && got > numbers[n.Name()] {
				err = errWant(got, numbers[n.Name()])
			}
			return err
		})
	}
}

// scaleCrowd returns when there are so many pods, and none that are about to end.
func (w *world) scaleCrowd(t *testing.T, n int) {
	t.Helper()
	w.kubectl(t, "scale", "deployment/crowd", fmt.Sprintf("--replicas=%d", n))
	w.awaitPods(t, "crowd", n, 5*time.Minute)
	eventually(t, "pods that end are gone", 3*time.Minute, func() error {
		list, err := w.api.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=crowd"})
		if err == nil && len(list.Items) != n {
			err = errWant(len(list.Items), n)
		}
		return err
	})
}

// wantCrowd looks for all of it in each kernel.
func (w *world) wantCrowd(t *testing.T) {
	t.Helper()
	for _, n := range w.Nodes() {
		eventually(t, "the kernel of "+n.Name()+" has the whole crowd", time.Minute, func() error {
			out, err := w.machines[n.Name()].Output("nft", "list", "map", "ip", "onerule", "endpoints-tcp")
			if got := strings.Count(out, "10.96.7.9 . 80 . "); err == nil && got != crowdSize {
				err = errWant(got, crowdSize)
			}
			return err
		})
	}
}

// A snapshot is all that pods could leave on a node, by what it is.
type snapshot map[string][]string

// settled gives snapshots of all nodes that do not change any more.
func (w *world) settled(t *testing.T) map[string]snapshot {
	t.Helper()
	var last map[string]snapshot
	eventually(t, "the nodes are quiet", time.Minute, func() error {
		now, err := w.snapshots()
		if err != nil {
			return err
		}
		diff := cmp.Diff(last, now)
		last = now
		if diff != "" {
			return errors.New(diff)
		}
		goOn(t, 2*time.Second)
		return nil
	})
	return last
}

func (w *world) snapshots() (map[string]snapshot, error) {
	all := map[string]snapshot{}
	for _, n := range w.Nodes() {
		s, err := w.snapshot(n.Name())
		if err != nil {
			return nil, fmt.Errorf("snapshot of %s: %w", n.Name(), err)
		}
		all[n.Name()] = s
	}
	return all, nil
}

func (w *world) snapshot(node string) (snapshot, error) {
	s := snapshot{}
	for what, command := range map[string][]string{
		"links":             {"ip", "-o", "link"},
		"addresses":         {"ip", "-o", "address"},
		"IPv4 routes":       {"ip", "-4", "route", "show", "table", "all"},
		"IPv6 routes":       {"ip", "-6", "route", "show", "table", "all"},
		"rules of routing":  {"ip", "rule"},
		"IPv4 neighbours":   {"ip", "-4", "neighbour", "show", "nud", "permanent"},
		"IPv6 neighbours":   {"ip", "-6", "neighbour", "show", "nud", "permanent"},
		"neighbour proxies": {"ip", "neighbour", "show", "proxy"},
	} {
		out, err := w.machines[node].Output(command[0], command[1:]...)
		if err != nil {
			return nil, err
		}
		s[what] = lines(out)
	}
	rules, err := w.rules(node)
	if err != nil {
		return nil, err
	}
	s["rules and elements"] = withoutNumbers(rules)
	if s["files"], err = w.files(node); err != nil {
		return nil, err
	}
	s["counted endpoints"], err = w.counted(node)
	return s, err
}

// lines are those of a listing, sorted.
func lines(out string) []string {
	var list []string
	for line := range strings.Lines(out) {
		list = append(list, strings.TrimSpace(line))
	}
	slices.Sort(list)
	return list
}

// rules are our tables on a node, without counters, as OBJECT: LINE. Which of a Service's
// endpoints is the first follows from how they came.
func (w *world) rules(node string) (list []string, err error) {
	tables, err := w.machines[node].Output("nft", "list", "tables")
	if err != nil {
		return nil, err
	}
	for table := range strings.Lines(tables) {
		fields := strings.Fields(table)
		if len(fields) != 3 || !strings.HasPrefix(fields[2], "onerule") {
			continue
		}
		out, err := w.machines[node].Output("nft", "-s", "list", "table", fields[1], fields[2])
		if err != nil {
			return nil, err
		}
		list = append(list, objects(fields[1]+" "+fields[2], out)...)
	}
	slices.Sort(list)
	return list, nil
}

func objects(table, listing string) (list []string) {
	slot := regexp.MustCompile(` \. [0-9]+ : ([0-9])`)
	object := ""
	for line := range strings.Lines(listing) {
		if begin := regexp.MustCompile(`^\t(\S+ \S+) \{`).FindStringSubmatch(line); begin != nil {
			object = begin[1]
		}
		line = strings.TrimSpace(line)
		parts := []string{line}
		if !strings.Contains(line, `"`) { // elements, of which several may stand on a line
			parts = strings.Split(strings.TrimRight(strings.TrimPrefix(line, "elements = { "), ", }"), ", ")
		}
		for _, part := range parts {
			if part != "" {
				list = append(list, table+" "+object+": "+slot.ReplaceAllString(part, " . N : $1"))
			}
		}
	}
	return list
}

// withoutNumbers leaves out the rules that follow from which numbers of endpoints there
// are, which stay a minute longer than the last Service that has so many, and the chain
// whose name is the digest of all rules.
func withoutNumbers(rules []string) []string {
	return slices.DeleteFunc(slices.Clone(rules), regexp.MustCompile(`lb-[a-z]+-[0-9]+|chain rules-`).MatchString)
}

// files are those of CNI plugins and of the daemon. What is kept on purpose is left out:
// the journal of removals, when the last addresses were given back, and what STATUS saw in
// its last calls, one file of each for a network.
func (w *world) files(node string) ([]string, error) {
	var list []string
	for _, dir := range []string{"/var/lib/cni", "/run/onerule", "/run/netns", "/etc/cni/net.d", "/opt/cni/bin", "/run/containerd/io.containerd.cni"} {
		root := w.file(node, dir)
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			name := dir + strings.TrimPrefix(path, root)
			if strings.Contains(name, "/released/") || strings.Contains(name, "/journal") || strings.HasSuffix(name, "/pods/status") {
				return nil
			}
			list = append(list, name)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", dir, err)
		}
	}
	return list, nil
}

// counted are the keys of the map in which connections are counted. No file system has
// it in a namespace: the daemon holds it.
func (w *world) counted(node string) ([]string, error) {
	pid, err := w.daemon(node)
	if err != nil {
		return nil, err
	}
	held, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return nil, err
	}
	for _, file := range held {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has just been closed
		}
		var id ebpf.MapID
		for line := range strings.Lines(string(text)) {
			_, _ = fmt.Sscanf(line, "map_id: %d", &id) // other lines say other things
		}
		if id == 0 {
			continue
		}
		if keys, err := keysOf(id, "endpoint_hits"); err != nil || keys != nil {
			return keys, err
		}
	}
	return nil, fmt.Errorf("the daemon of %s holds no map of counters", node)
}

// keysOf gives the keys of a map, or nil if it has another name.
func keysOf(id ebpf.MapID, name string) ([]string, error) {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return nil, fmt.Errorf("open map %d: %w", id, err)
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return nil, fmt.Errorf("look at map %d: %w", id, err)
	}
	if info.Name != name {
		return nil, nil
	}
	keys := []string{}
	key := make([]byte, m.KeySize())
	for err = m.NextKey(nil, &key); err == nil; err = m.NextKey(key, &key) {
		keys = append(keys, fmt.Sprintf("%x", key))
	}
	if !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, fmt.Errorf("read map %s: %w", name, err)
	}
	slices.Sort(keys)
	return keys, nil
}
