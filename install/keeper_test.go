package install_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/go-logr/logr"

	"onerule/install"
	"onerule/test/rig"
	"onerule/test/wired"
)

// kept runs a Keeper until the test ends, and gives what was counted.
func kept(t *testing.T, k *install.Keeper) func() map[string]int {
	t.Helper()
	var mu sync.Mutex
	counts := map[string]int{}
	k.Plugin, k.Log = plugin(t), logr.Discard()
	k.Foreign = func(kind, _ string) {
		mu.Lock()
		defer mu.Unlock()
		counts[kind]++
	}
	k.Others = func(list []install.Other) {
		mu.Lock()
		defer mu.Unlock()
		counts["others"] = len(list)
	}
	done := make(chan struct{})
	ctx := t.Context()
	go func() { k.Run(ctx); close(done) }() // ends with the test's context
	t.Cleanup(func() { <-done })
	return func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		m := map[string]int{}
		for kind, n := range counts {
			m[kind] = n
		}
		return m
	}
}

func TestD8FilesAreKept(t *testing.T) {
	p := places(t)
	write(t, filepath.Join(p.Lists, "05-other.conflist"), bridge)
	write(t, filepath.Join(p.Reservations, "old", "10.1.1.7"), "pod\r\neth0")
	k := &install.Keeper{Places: p}
	counts := kept(t, k)
	there := func(path string) func() error {
		return func() error { _, err := os.Stat(path); return err }
	}
	rig.Eventually(t, "the binary", there(p.Binary()))
	if err := there(p.List())(); !os.IsNotExist(err) {
		t.Fatalf("D8 the list is there before the network works: %v", err)
	}
	k.Publish(list())
	rig.Eventually(t, "the list", there(p.List()))
	whole := map[string]string{p.Binary(): read(t, p.Binary()), p.List(): read(t, p.List())}
	if got, err := p.Adoptable(nil); err != nil || got != filepath.Join(p.Reservations, "old") {
		t.Errorf("the list adopts %q, %v", got, err)
	}
	var repairs wired.Repairs
	harm := func(name, path, kind string, do func()) {
		t.Helper()
		repairs.Try(t, name, func() {
			before := counts()[kind]
			do()
			rig.Eventually(t, path+" is back and counted", func() error {
				if b, err := os.ReadFile(path); err != nil || string(b) != whole[path] {
					return fmt.Errorf("it holds %d bytes, %w", len(b), err)
				}
				if got := counts()[kind]; got <= before {
					return fmt.Errorf("counted %d, want more than %d", got, before)
				}
				return nil
			})
		})
	}
	rig.Eventually(t, "D42 another list is told", func() error {
		if n := counts()["others"]; n != 1 {
			return fmt.Errorf("%d were told", n)
		}
		return nil
	})
	t.Run("D8 a list that is removed or changed is back within 2 s", func(t *testing.T) {
		harm("a list is removed", p.List(), install.KindList, func() { remove(t, p.List()) })
		harm("a list is changed", p.List(), install.KindList, func() { write(t, p.List(), `{"name": "pods", "plugins": []}`) })
	})
	t.Run("D7 so is a binary", func(t *testing.T) {
		harm("a binary is removed", p.Binary(), install.KindBinary, func() { remove(t, p.Binary()) })
		harm("a binary is another", p.Binary(), install.KindBinary, func() {
			remove(t, p.Binary())
			write(t, p.Binary(), "another")
		})
	})
	t.Run("also when its directory goes", func(t *testing.T) {
		harm("the folder of lists goes", p.List(), install.KindList, func() {
			if err := os.RemoveAll(p.Lists); err != nil {
				t.Fatal(err)
			}
		})
		harm("a list is removed from the new folder", p.List(), install.KindList, func() { remove(t, p.List()) })
	})
	repairs.Tell(t)
	t.Run("what is to be published now is no change by others", func(t *testing.T) {
		before := counts()[install.KindList]
		l := list()
		l.MTU = 1450
		k.Publish(l)
		rig.Eventually(t, "the new list", func() error {
			if read(t, p.List()) == whole[p.List()] {
				return errors.New("it is as before")
			}
			return nil
		})
		if n := counts()[install.KindList]; n != before {
			t.Errorf("counted %d, want %d", n, before)
		}
	})
}

func TestD42AListThatComesLaterIsSetAside(t *testing.T) {
	p := places(t)
	k := &install.Keeper{Places: p, Exclusive: true}
	kept(t, k)
	k.Publish(list())
	rig.Eventually(t, "the list", func() error { _, err := os.Stat(p.List()); return err })
	other := filepath.Join(p.Lists, "05-other.conflist")
	write(t, other, bridge)
	rig.Eventually(t, "the other is set aside", func() error {
		if _, err := os.Stat(other); !os.IsNotExist(err) {
			return errors.New("it is there")
		}
		return nil
	})
	if got := read(t, other+".onerule.bak"); got != bridge {
		t.Errorf("it holds %s", got)
	}
}

// Without a list of ours runtimes need those of others.
func TestD42ListsOfOthersStayWhereOursCanNotBe(t *testing.T) {
	p := places(t)
	other := filepath.Join(p.Lists, "20-other.conflist")
	write(t, other, bridge)
	if err := os.MkdirAll(filepath.Join(p.List(), "in the way"), 0o755); err != nil {
		t.Fatal(err)
	}
	k := &install.Keeper{Places: p, Exclusive: true}
	kept(t, k)
	k.Publish(list())
	rig.Eventually(t, "it says so", func() error {
		if published, fault := k.State(); published || fault == nil {
			return fmt.Errorf("published %t, fault %w", published, fault)
		}
		return nil
	})
	if got := read(t, other); got != bridge {
		t.Errorf("the other holds %s", got)
	}
	if err := os.RemoveAll(p.List()); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, "the other is set aside once ours is there", func() error {
		if _, err := os.Stat(other); !os.IsNotExist(err) {
			return errors.New("it is there")
		}
		if published, fault := k.State(); !published || fault != nil {
			return fmt.Errorf("published %t, fault %w", published, fault)
		}
		return nil
	})
}

// What tells others to leave links of pods alone is kept, too, and is written again where it
// could not be at first.
func TestD12WhatOthersAreToldIsKept(t *testing.T) {
	p := places(t)
	managed(t, p, "NetworkManager/conf.d")
	file := filepath.Join(p.Etc, "NetworkManager/conf.d/90-onerule.conf")
	if err := os.MkdirAll(filepath.Join(file, "in the way"), 0o755); err != nil {
		t.Fatal(err)
	}
	k := &install.Keeper{Places: p}
	kept(t, k)
	k.Publish(list())
	rig.Eventually(t, "the list is there all the same", func() error { _, err := os.Stat(p.List()); return err })
	for _, harm := range []string{"at first", "later"} {
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		k.Publish(list()) // which makes it look
		rig.Eventually(t, "it is there, "+harm, func() error {
			if info, err := os.Stat(file); err != nil || info.IsDir() {
				return fmt.Errorf("not a file: %w", err)
			}
			return nil
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
