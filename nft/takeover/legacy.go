package takeover

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// findLegacy finds kube-proxy's chains in the tables of iptables-legacy that the
// namespace has. To name another one would make it.
func findLegacy(_ context.Context, l *Leftovers) error {
	for _, family := range families() {
		tables, err := legacyTables(family)
		if err != nil {
			return err
		}
		for _, name := range iptablesTables() {
			if !slices.Contains(tables, name) {
				continue
			}
			t, err := legacyTable(family, name)
			if err != nil {
				return fmt.Errorf("table %s %s of iptables-legacy: %w", family, name, err)
			}
			if r := t.removal(); !r.empty() {
				l.Chains = append(l.Chains, r.found(family, name, true))
			}
		}
	}
	return nil
}

// legacyTables names the tables that are there. A kernel without iptables has no file.
func legacyTables(family Family) ([]string, error) {
	path := "/proc/thread-self/net/ip_tables_names"
	if family == IPv6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	names, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list tables of iptables-legacy: %w", err)
	}
	return strings.Fields(string(names)), nil
}

// Of linux/netfilter_ipv4/ip_tables.h and its sister for IPv6, which golang.org/x/sys
// does not have.
const (
	optionInfo    = 64 // IPT_SO_GET_INFO
	optionEntries = 65 // IPT_SO_GET_ENTRIES

	infoSize       = 84 // of struct ipt_getinfo
	infoHooks      = 32 // where in it the mask of hooks is
	infoHookEntry  = 36
	infoEntriesLen = 80
	entriesOffset  = 40 // of the entries in struct ipt_get_entries
	entriesLen     = 32

	extensionData = 32 // of a match or a target, behind its size and name
)

// A blob is a table as the kernel gives it: the rules in a row, a chain of its user's
// beginning with an entry that has its name.
type blob struct {
	hooks   map[int]string // the built-in chain that begins at an offset
	entries []byte
	base    int // size of the part of an entry before its offsets: struct ipt_ip
	header  int // size of an entry before its matches
}

// legacyTable reads a table.
func legacyTable(family Family, name string) (table, error) {
	domain, level, b := unix.AF_INET, unix.SOL_IP, blob{base: 84, header: 112}
	if family == IPv6 {
		domain, level, b = unix.AF_INET6, unix.SOL_IPV6, blob{base: 136, header: 168}
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return table{}, fmt.Errorf("open raw socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	for range tries {
		info := make([]byte, infoSize)
		copy(info, name)
		if err := getsockopt(fd, level, optionInfo, info); err != nil {
			return table{}, fmt.Errorf("read its size: %w", err)
		}
		b.readHooks(info)
		size := binary.NativeEndian.Uint32(info[infoEntriesLen:])
		all := make([]byte, entriesOffset+int(size))
		copy(all, name)
		binary.NativeEndian.PutUint32(all[entriesLen:], size)
		err := getsockopt(fd, level, optionEntries, all)
		if errors.Is(err, unix.EAGAIN) {
			continue // it was replaced in between
		}
		if err != nil {
			return table{}, fmt.Errorf("read its rules: %w", err)
		}
		b.entries = all[entriesOffset:]
		return b.parse(name)
	}
	return table{}, errors.New("it changes too fast to be read")
}

func getsockopt(fd, level, option int, value []byte) error {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func (b *blob) readHooks(info []byte) {
	b.hooks = map[int]string{}
	mask := binary.NativeEndian.Uint32(info[infoHooks:])
	for i, name := range []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"} {
		if mask&(1<<i) != 0 {
			b.hooks[int(binary.NativeEndian.Uint32(info[infoHookEntry+4*i:]))] = name
		}
	}
}

// An entry of a blob: a rule, or the head of a chain.
type entry struct {
	offset, next int
	matches      []byte
	target       []byte
}

// each walks the entries.
func (b *blob) each(f func(entry)) error {
	for at := 0; at < len(b.entries); {
		rest := b.entries[at:]
		if len(rest) < b.header {
			return errors.New("an entry is cut off")
		}
		target := int(binary.NativeEndian.Uint16(rest[b.base+4:]))
		size := int(binary.NativeEndian.Uint16(rest[b.base+6:]))
		if target < b.header || size < target+extensionData+4 || size > len(rest) {
			return errors.New("an entry has an impossible length")
		}
		f(entry{offset: at, next: at + size, matches: rest[b.header:target], target: rest[target:size]})
		at += size
	}
	return nil
}

// head gives the name of the chain that an entry begins.
func (e entry) head() (name string, ok bool) {
	if extensionName(e.target) != "ERROR" {
		return "", false
	}
	return unix.ByteSliceToString(e.target[extensionData:]), true
}

// leadsTo gives the offset that a rule jumps to, negative for a verdict.
func (e entry) leadsTo() int {
	if extensionName(e.target) != "" { // not the standard target
		return -1
	}
	return int(int32(binary.NativeEndian.Uint32(e.target[extensionData:])))
}

func (e entry) comment() string {
	for m := e.matches; len(m) >= extensionData; {
		size := int(binary.NativeEndian.Uint16(m))
		if size < extensionData || size > len(m) {
			break
		}
		if extensionName(m) == "comment" {
			return unix.ByteSliceToString(m[extensionData:size])
		}
		m = m[size:]
	}
	return ""
}

func extensionName(b []byte) string {
	name, _, _ := bytes.Cut(b[2:extensionData-1], []byte{0})
	return string(name)
}

// parse gives what of a blob concerns kube-proxy's chains.
func (b *blob) parse(name string) (table, error) {
	t := table{chains: map[string]chain{}}
	starts := map[int]string{} // of chains
	err := b.each(func(e entry) {
		if head, ok := e.head(); ok {
			starts[e.next] = head
			if isProxyChain(name, head) {
				t.chains[head] = chain{rules: -1} // the last of its entries only returns
			}
		}
	})
	if err != nil {
		return t, err
	}
	within, builtIn := "", false
	err = b.each(func(e entry) {
		if hook, ok := b.hooks[e.offset]; ok {
			within, builtIn = hook, true
		}
		if head, ok := e.head(); ok {
			within, builtIn = head, false
			return
		}
		if c, ours := t.chains[within]; ours {
			t.chains[within] = chain{rules: c.rules + 1}
			return
		}
		target := starts[e.leadsTo()]
		if _, leads := t.chains[target]; leads {
			t.jumps = append(t.jumps, rule{chain: within, target: target, builtIn: builtIn, comment: e.comment()})
		}
	})
	return t, err
}
