package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Machine is a node that a plugin may be installed on.
type Machine struct {
	Proc string // where the kernel tells about itself: /proc
	// Sysctls is where settings are written: /proc/sys, but for a container, which has the
	// node's mounted somewhere else. Empty: below Proc.
	Sysctls string
	Places  Places
	Plugin  string // the file that would be installed
	Now     func() time.Time
	// Synchronized says whether somebody keeps the clock right.
	Synchronized func() (bool, error)
}

// Look checks what the plugin and its files need. What rules and programs in the kernel need
// is for others to say.
func (m Machine) Look(ctx context.Context) Report {
	r := Report{m.kernel(), m.forwarding("IPv4", "net/ipv4/ip_forward"), m.forwarding("IPv6", "net/ipv6/conf/all/forwarding"), m.conntrack(), m.neighbours()}
	r = append(r, m.directory("binaries", m.Places.Binaries, true), m.directory("lists", m.Places.Lists, false), m.directory("state", m.Places.State, false))
	return append(r, m.plugin(ctx), m.others(), m.networkManager(), m.networkd(), m.agents(), m.boot(), m.clock())
}

func (m Machine) read(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(m.Proc, name))
	return strings.TrimSpace(string(b)), err
}

func (m Machine) number(name string) (int, error) {
	text, err := m.read(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// kernel wants 5.13: connections that are refused before they are routed are since then.
func (m Machine) kernel() Check {
	const name, remedy = "kernel", "Linux 5.13 or later is needed"
	text, err := m.read("sys/kernel/osrelease")
	if err != nil {
		return failed(name, err.Error(), remedy)
	}
	var major, minor int
	if _, err := fmt.Sscanf(text, "%d.%d", &major, &minor); err != nil {
		return failed(name, fmt.Sprintf("%q is no version", text), remedy)
	}
	if major < 5 || major == 5 && minor < 13 {
		return failed(name, text, remedy)
	}
	return ok(name, text)
}

func (m Machine) forwarding(family, setting string) Check {
	name, path := "forward "+family, filepath.Join(cmp.Or(m.Sysctls, filepath.Join(m.Proc, "sys")), setting)
	value, err := m.read(filepath.Join("sys", setting))
	switch {
	case err != nil && family == "IPv6":
		return warn(name, "the kernel has no IPv6", "nothing, if pods are to have IPv4 addresses only")
	case err != nil:
		return failed(name, err.Error(), "mount /proc/sys")
	case value != "0":
		return ok(name, "on")
	case unix.Access(path, unix.W_OK) != nil:
		return failed(name, "off, and "+path+" can't be written", "turn it on, or let it be written: in a container by mounting the node's /proc/sys/net writable, and saying where with --sysctl-dir")
	}
	return ok(name, "off: the first pod turns it on")
}

// share warns when most of something is used.
func share(name string, used, most int, remedy string) Check {
	found := fmt.Sprintf("%d of %d entries", used, most)
	if most > 0 && used > most/5*4 {
		return warn(name, found, remedy)
	}
	return ok(name, found)
}

func (m Machine) conntrack() Check {
	const name = "conntrack"
	used, err := m.number("sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		return warn(name, "not loaded", "nothing, if the kernel has it as a module that can be loaded: modprobe nf_conntrack")
	}
	most, err := m.number("sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		return warn(name, err.Error(), "see sysctl net.netfilter.nf_conntrack_max")
	}
	return share(name, used, most, "raise net.netfilter.nf_conntrack_max: when it is full new connections are lost")
}

// neighbours looks at the limit that all network namespaces of a machine share. It shows in
// the first of them only.
func (m Machine) neighbours() Check {
	const name = "neighbours"
	most, err := m.number("sys/net/ipv4/neigh/default/gc_thresh3")
	if err != nil {
		return ok(name, "the limit does not show in this network namespace")
	}
	stat, err := m.read("net/stat/arp_cache")
	fields := strings.Fields(stat)
	i := slices.Index(fields, "entries")
	if err != nil || i < 0 {
		return ok(name, fmt.Sprintf("at most %d", most))
	}
	// The values stand in the line below the names, in as many columns.
	_, values, _ := strings.Cut(stat, "\n")
	columns := strings.Fields(values)
	if i >= len(columns) {
		return ok(name, fmt.Sprintf("at most %d", most))
	}
	used, err := strconv.ParseInt(columns[i], 16, 64)
	if err != nil {
		return ok(name, fmt.Sprintf("at most %d", most))
	}
	return share(name, int(used), most, "raise net.ipv4.neigh.default.gc_thresh3, and that of ipv6: when it is full connections fail")
}

// directory wants one that can be written, or made.
func (m Machine) directory(name, path string, programs bool) Check {
	there := path
	for {
		info, err := os.Stat(there)
		if err == nil && !info.IsDir() {
			return failed(name, there+" is no directory", "remove it, or say where the container runtime looks")
		}
		if err == nil || there == filepath.Dir(there) {
			break
		}
		there = filepath.Dir(there)
	}
	var fs unix.Statfs_t
	switch {
	case try(there) != nil:
		return failed(name, there+" can't be written", "mount it writable, or say where the container runtime looks")
	case programs && unix.Statfs(there, &fs) == nil && fs.Flags&unix.ST_NOEXEC != 0:
		return failed(name, there+" is mounted noexec", "mount it so that programs can run")
	case there != path:
		return ok(name, path+" will be made")
	}
	return ok(name, path)
}

// try makes a file and removes it: permissions alone do not say whether that works.
func try(dir string) error {
	f, err := os.CreateTemp(dir, beside)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func (m Machine) plugin(ctx context.Context) Check {
	if err := speaks(ctx, m.Plugin); err != nil {
		return failed("plugin", fmt.Sprintf("%s: %v", m.Plugin, err), "say which file it is, built for this machine")
	}
	return ok("plugin", m.Plugin)
}

func (m Machine) others() Check {
	const name = "other lists"
	list, err := m.Places.Others()
	if err != nil {
		return failed(name, err.Error(), "make the directory readable")
	}
	list = slices.DeleteFunc(list, func(o Other) bool { return !o.First })
	if len(list) == 0 {
		return ok(name, "none comes before ours")
	}
	var texts []string
	for _, o := range list {
		texts = append(texts, o.String())
	}
	return warn(name, strings.Join(texts, "; "), "remove them, or set them aside with --cni-exclusive")
}

// agents looks for programs that do the same, as far as this process sees others.
func (m Machine) agents() Check {
	const name = "other agents"
	known := []string{"kube-proxy", "calico-node", "cilium-agent", "flanneld", "kube-router", "kindnetd", "antrea-agent"}
	paths, err := filepath.Glob(filepath.Join(m.Proc, "[0-9]*", "comm"))
	if err != nil {
		return warn(name, err.Error(), "")
	}
	var found []string
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if agent := strings.TrimSpace(string(b)); err == nil && slices.Contains(known, agent) && !slices.Contains(found, agent) {
			found = append(found, agent)
		}
	}
	if len(found) == 0 {
		return ok(name, "none is seen")
	}
	slices.Sort(found)
	return warn(name, strings.Join(found, ", ")+" runs here", "stop it before pods depend on onerule: two that write rules or routes disturb each other")
}

func (m Machine) boot() Check {
	const name = "boot ID"
	id, err := m.read("sys/kernel/random/boot_id")
	if err != nil {
		return failed(name, err.Error(), "mount /proc: addresses of before a reboot can't be told from others")
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(id) {
		return failed(name, fmt.Sprintf("%q is none", id), "mount the kernel's own /proc")
	}
	return ok(name, id)
}

// clock wants a time that can be true: addresses are chosen by when they were released.
func (m Machine) clock() Check {
	const name, remedy = "clock", "run chrony, systemd-timesyncd or another that keeps it right"
	now := m.Now().UTC()
	if now.Year() < 2025 {
		return failed(name, now.Format(time.DateTime)+" can't be", remedy)
	}
	in, err := m.Synchronized()
	if err != nil || !in {
		return warn(name, now.Format(time.DateTime)+", kept right by nobody", remedy)
	}
	return ok(name, now.Format(time.DateTime)+", synchronized")
}

// KernelSynchronized asks the kernel whether somebody keeps its clock right.
func KernelSynchronized() (bool, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t) // with no mode it only reads
	return err == nil && state != unix.TIME_ERROR, err
}
