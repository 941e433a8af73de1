package hostport_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"onerule/nft/hostport"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/wired"
)

func isGone(path string) bool {
	_, err := os.Lstat(path)
	return os.IsNotExist(err)
}

func TestTheFolderGoesWithItsLastRecord(t *testing.T) {
	ns := netns.New(t, "node")
	dir := filepath.Join(t.TempDir(), "hostports")
	ports := open(t, dir)
	claim(t, ns, ports, "a:eth0", both(addr.IPv4().Pod(0), netip.Addr{})...)
	claim(t, ns, ports, "b:eth0", hostport.Claim{Protocol: hostport.TCP, HostPort: 9999, Pod: netip.AddrPortFrom(addr.IPv4().Pod(1), 80)})
	release(t, ns, ports, "a:eth0")
	if isGone(dir) {
		t.Fatal("it is gone, with a record in it")
	}
	wired.Do(t, ns, func() error {
		_, err := ports.Keep(within(t), func(string) bool { return false })
		return err
	})
	if !isGone(dir) {
		t.Errorf("it is there, with %q in it", files(t, dir))
	}
	t.Run("unless there is something else in it", func(t *testing.T) {
		claim(t, ns, ports, "a:eth0", both(addr.IPv4().Pod(0), netip.Addr{})...)
		if err := os.WriteFile(filepath.Join(dir, "note"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		release(t, ns, ports, "a:eth0")
		if isGone(filepath.Join(dir, "note")) {
			t.Error("what is of others is gone")
		}
	})
	t.Run("also when its claim was refused, or only looked at", func(t *testing.T) {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		load(t, ns, ports)
		if !isGone(dir) {
			t.Error("Load left it")
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		load(t, ns, ports)
		if !isGone(dir) {
			t.Error("Load left one that was empty")
		}
	})
}

// The folder comes and goes while others wait for its lock: none of them may write into one
// that is gone, or take out of the kernel what another one has just put there.
func TestNoClaimIsLostWhileTheFolderComesAndGoes(t *testing.T) {
	ns := netns.New(t, "node")
	dir := filepath.Join(t.TempDir(), "hostports")
	const owners, rounds = 3, 30
	var wg sync.WaitGroup
	errs := make([]error, owners+1)
	for i := range owners {
		ports := open(t, dir)
		wg.Go(func() {
			owner := fmt.Sprintf("%d:eth0", i)
			c := []hostport.Claim{{Protocol: hostport.TCP, HostPort: uint16(9000 + i), Pod: netip.AddrPortFrom(addr.IPv4().Pod(i), 80)}}
			for range rounds {
				err := ns.Do(func() error {
					if err := ports.Claim(within(t), owner, c); err != nil {
						return fmt.Errorf("claim: %w", err)
					}
					if err := ports.Check(owner, c); err != nil {
						return fmt.Errorf("check: %w", err)
					}
					return ports.Release(within(t), owner)
				})
				if err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	all := open(t, dir)
	wg.Go(func() {
		errs[owners] = ns.Do(func() error {
			for range rounds {
				if _, err := all.Keep(within(t), func(string) bool { return true }); err != nil {
					return fmt.Errorf("keep: %w", err)
				}
			}
			return nil
		})
	})
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if !isGone(dir) {
		t.Errorf("the folder is left, with %q", files(t, dir))
	}
}
