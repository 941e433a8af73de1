package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"onerule/install"
)

const (
	// sweepEvery is how often it is looked for pods that died without a word: most
	// runtimes call no GC, and what stays holds addresses and ports.
	sweepEvery = time.Minute
	// sweepPatience is how long the plugin may take for it.
	sweepPatience = 30 * time.Second
	// mostSaid is how much of what the plugin says of a sweep is logged, in bytes.
	mostSaid = 2 << 10
)

// swept is what the plugin says that it removed.
type swept struct {
	Attachments int `json:"attachments"`
	Addresses   int `json:"addresses"`
	Links       int `json:"links"`
	HostPorts   int `json:"hostPorts"`
	Files       int `json:"files"`
	// Strangers are links that only look like those of our pods.
	Strangers []string `json:"strangers"`
}

func (s swept) nothing() bool {
	return s.Attachments+s.Addresses+s.Links+s.HostPorts+s.Files == 0
}

// kinds gives the words for a counter.
func (s swept) kinds() map[string]int {
	return map[string]int{"attachment": s.Attachments, "address": s.Addresses, "link": s.Links, "host_port": s.HostPorts, "file": s.Files}
}

// A sweeper has the plugin, whose state it is, remove what is left of pods that are gone.
type sweeper struct {
	plugins []string // the first one that is there
	state   string
	sysctls string // below which the plugin writes settings
	count   func(swept)
	log     logr.Logger

	// What was told.
	fault, strangers string
}

func (n *Network) newSweeper() *sweeper {
	settings := n.cfg.Settings
	return &sweeper{
		plugins: []string{n.plugin(), filepath.Join(settings.Install.BinDir, install.BinaryName)},
		state:   settings.CNIState, sysctls: filepath.Dir(n.cfg.Sysctls), log: n.cfg.Log,
		count: func(s swept) {
			n.mu.Lock()
			defer n.mu.Unlock()
			for kind, count := range s.kinds() {
				n.swept[kind] += count
			}
		},
	}
}

// run sweeps at once, what is left of an earlier boot or of a runtime that was killed, and
// then from time to time until ctx ends.
func (s *sweeper) run(ctx context.Context, between time.Duration) {
	every := time.NewTicker(between)
	defer every.Stop()
	for {
		if err := s.sweep(ctx); ctx.Err() == nil {
			s.tell(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// sweep gives an error also where only something could not be removed.
func (s *sweeper) sweep(ctx context.Context) error {
	if _, err := os.Stat(s.state); os.IsNotExist(err) {
		return nil // no pod ever was here
	}
	plugin, err := s.plugin()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, sweepPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, plugin, "sweep", s.state)
	cmd.Env = []string{"ONERULE_SYSCTL_DIR=" + s.sysctls}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err = cmd.Run()
	var got swept
	if decodeErr := json.Unmarshal(out.Bytes(), &got); decodeErr != nil {
		return errors.Join(fmt.Errorf("run %s sweep: %w", plugin, decodeErr), err)
	}
	s.removed(got, said.String())
	if err != nil {
		return fmt.Errorf("run %s sweep: %w: %s", plugin, err, tail(said.String()))
	}
	return nil
}

func (s *sweeper) plugin() (string, error) {
	for _, path := range s.plugins {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no CNI plugin at %s", strings.Join(s.plugins, ", "))
}

// removed counts and logs what was.
func (s *sweeper) removed(got swept, said string) {
	s.count(got)
	if !got.nothing() {
		s.log.Info("what was left of pods that are gone is removed", "attachments", got.Attachments, "addresses", got.Addresses,
			"links", got.Links, "hostPorts", got.HostPorts, "files", got.Files, "plugin", tail(said))
	}
	if now := strings.Join(got.Strangers, ", "); now != s.strangers {
		if s.strangers = now; now != "" {
			s.log.Info("links look like those of our pods, and nothing on record speaks of them; they stay", "links", now, "state", s.state)
		}
	}
}

// tail gives the end of a text, from the beginning of a line.
func tail(text string) string {
	text = strings.TrimSpace(text)
	if len(text) <= mostSaid {
		return text
	}
	text = text[len(text)-mostSaid:]
	return "…" + text[strings.IndexByte(text, '\n')+1:]
}

// tell logs what went wrong, once.
func (s *sweeper) tell(err error) {
	switch {
	case err == nil:
		s.fault = ""
	case err.Error() != s.fault:
		s.fault = err.Error()
		s.log.Error(err, "what is left of pods that are gone may stay, trying again", "after", sweepEvery)
	}
}
