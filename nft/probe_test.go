package nft

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/nft/inspect"
	"onerule/test/netns"
)

func TestA14_16VersionsBelowTheMinimumAreNamed(t *testing.T) {
	kernel, nft := minima()
	for _, c := range []struct {
		what, version string
		least         [3]int
		want          string
	}{
		{"kernel", "5.12.19-amd64", kernel, "kernel 5.12.19-amd64 is too old: 5.13.0 or later is needed"},
		{"kernel", "4.19.0", kernel, "kernel 4.19.0 is too old: 5.13.0 or later is needed"},
		{"kernel", "5.13.0-rc1", kernel, ""},
		{"kernel", "6.1.0-57-cloud-amd64", kernel, ""},
		{"kernel", "6.18", kernel, ""},
		{"nft", "v1.0.2 (Lester Gooch)", nft, "nft v1.0.2 (Lester Gooch) is too old: 1.0.6 or later is needed"},
		{"nft", "v0.9.8 (E.D.S.)", nft, "nft v0.9.8 (E.D.S.) is too old: 1.0.6 or later is needed"},
		{"nft", "v1.0.6 (Lester Gooch #5)", nft, ""},
		{"nft", "v1.1.3 (Commodore Bullmoose #4)", nft, ""},
		{"nft", "2.0", nft, ""},
		{"nft", "what?", nft, `cannot read the version of nft from "what?"`},
	} {
		got := ""
		if err := atLeast(c.what, c.version, c.least); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s %q: got %q, want %q", c.what, c.version, got, c.want)
		}
	}
}

// Whatever an element is, it is taken or not, without a panic.
func FuzzElements(f *testing.F) {
	f.Add([]byte{10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0}, []byte{}, []byte{}, "balance-tcp")
	f.Add([]byte{10, 0, 0, 1, 0, 80, 0, 0, 1, 0, 0, 0}, []byte{}, []byte{10, 1, 0, 1, 0, 80, 0, 0}, "")
	f.Add([]byte{10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0, 10, 2, 0, 0}, []byte{10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0, 10, 2, 255, 255}, []byte{}, "")
	f.Fuzz(func(_ *testing.T, key, keyEnd, value []byte, chain string) {
		e := inspect.Element{Key: key, KeyEnd: keyEnd, Value: value, Verdict: unix.NFT_GOTO, Chain: chain}
		s := NewState()
		for _, set := range []string{"service-ips", "endpoints-tcp", "hairpins", "lb-udp-2", AllowedSources, Endpoints.EmptySet()} {
			_ = s.take(IPv4, set, e)
			_ = s.take(IPv6, set, e)
		}
	})
}

// R8: a machine that lacks a part is told by it, each family by itself, and without fib
// all else goes on.
func TestR8PartsThatAreLackingAreNamed(t *testing.T) {
	nftPath, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	ns := netns.New(t, "node")
	for _, c := range []struct {
		name, refused string // a regular expression of what nft refuses
		fib           bool
		without       map[string]string
	}{
		{"nothing", "^$", true, map[string]string{}},
		{"fib", "fib saddr", false, map[string]string{}},
		{"numgen", "numgen", true, map[string]string{
			"IPv4": "nftables for IPv4 lack numgen: a module of the kernel, or a newer nft, is needed",
			"IPv6": "nftables for IPv6 lack numgen: a module of the kernel, or a newer nft, is needed",
		}},
		{"parts of one family", "ip6 .*(masquerade|reject)", true, map[string]string{
			"IPv6": "nftables for IPv6 lack masquerade, reject: a module of the kernel, or a newer nft, is needed",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			refusing := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *-f*) ;; *) exec %s \"$@\";; esac\ncat >%s/rules\n! grep -qE '%s' %s/rules || { echo refused >&2; exit 1; }\nexec %s \"$@\" <%s/rules\n",
				nftPath, dir, c.refused, dir, nftPath, dir)
			if err := os.WriteFile(filepath.Join(dir, "nft"), []byte(refusing), 0o700); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			var found Found
			err := ns.Do(func() (err error) {
				found, err = Probe(t.Context())
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			without := map[string]string{}
			for family, lack := range found.Without {
				without[family.word()] = lack.Error()
			}
			if diff := cmp.Diff(c.without, without); diff != "" || found.Fib != c.fib {
				t.Errorf("fib %v, want %v; families that lack something (-want +got): %s", found.Fib, c.fib, diff)
			}
			if tables := ns.Run(t, nftPath, "list", "tables"); tables != "" {
				t.Errorf("the probe left tables: %s", tables)
			}
		})
	}
}
