package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-logr/logr"
)

// freshen is how often the file is written although nothing in it has changed: who reads it
// takes an old one for that of a daemon that is gone.
const freshen = lookEvery / 2

// A Condition is what the CNI plugin should say when it is asked for its status.
type Condition struct {
	Code    int    `json:"code"` // of the CNI specification
	Message string `json:"message"`
}

// A Status is what the status file holds.
type Status struct {
	Time       time.Time   `json:"time"`
	Conditions []Condition `json:"conditions"` // none: all is well
	// Served says that all was brought in once since the daemon began.
	Served bool `json:"served"`
}

// status writes the file.
type status struct {
	path    string
	log     logr.Logger
	written time.Time
	last    []Condition
	served  bool   // what is to be written
	said    bool   // what was
	failed  string // what was logged
}

// write brings conditions into the file, unless they stand there.
func (s *status) write(list []Condition) {
	now := time.Now()
	if s.path == "" || !s.written.IsZero() && slices.Equal(list, s.last) && s.served == s.said && now.Sub(s.written) < freshen {
		return
	}
	err := replace(s.path, Status{Time: now.UTC(), Conditions: list, Served: s.served})
	if err == nil {
		s.written, s.last, s.said, s.failed = now, slices.Clone(list), s.served, ""
		return
	}
	if s.failed != err.Error() {
		s.failed = err.Error()
		s.log.Error(err, "the CNI plugin is not told what this process knows")
	}
}

// replace writes beside and renames, so that who reads sees all or nothing.
func replace(path string, s Status) error {
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("spell status: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make folder of status file: %w", err)
	}
	beside := path + ".new"
	err = os.WriteFile(beside, append(b, '\n'), 0o600) // for the plugin, which is root
	if err == nil {
		err = os.Rename(beside, path)
	}
	if err != nil {
		return fmt.Errorf("write status file: %w", errors.Join(err, os.Remove(beside)))
	}
	return nil
}
