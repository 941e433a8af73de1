package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// aside is what names of lists end with that were set aside. No runtime reads them.
const aside = ".onerule.bak"

// maxAside is how many different lists of one name are kept.
const maxAside = 10

// An Other is a list of plugins that is not ours.
type Other struct {
	File string `json:"file"` // without its directory
	// First says that runtimes take it before ours.
	First   bool     `json:"first"`
	Network string   `json:"network,omitempty"`
	Plugins []string `json:"plugins,omitempty"`
	// Broken says why it can't be read, if it can't.
	Broken string `json:"broken,omitempty"`

	reservations []reservations
}

// reservations is where a plugin of a list has host-local keep them.
type reservations struct{ dataDir, network string }

// String gives one line.
func (o Other) String() string {
	what := "network " + o.Network + " of " + strings.Join(o.Plugins, ", ")
	if o.Broken != "" {
		what = o.Broken
	}
	if o.First {
		return fmt.Sprintf("%s (%s) comes before %s: pods get its network, not ours", o.File, what, ListName)
	}
	return fmt.Sprintf("%s (%s) comes after %s", o.File, what, ListName)
}

// Others gives what runtimes would read beside our list, as they sort it.
func (p Places) Others() ([]Other, error) {
	return p.lists(func(name string) bool {
		return name != ListName && slices.Contains([]string{".conflist", ".conf", ".json"}, filepath.Ext(name))
	})
}

// lists gives the files whose names are wanted.
func (p Places) lists(wanted func(name string) bool) ([]Other, error) {
	entries, err := os.ReadDir(p.Lists)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for lists of plugins: %w", err)
	}
	var list []Other
	for _, e := range entries { // sorted by name
		if !e.IsDir() && wanted(e.Name()) {
			list = append(list, readOther(p.Lists, e.Name()))
		}
	}
	return list, nil
}

func readOther(dir, name string) Other {
	o := Other{File: name, First: name < ListName}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		o.Broken = err.Error()
		return o
	}
	type plugin struct {
		Type string `json:"type"`
		IPAM struct {
			Type    string `json:"type"`
			DataDir string `json:"dataDir"`
		} `json:"ipam"`
	}
	var f struct {
		Name string `json:"name"`
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if err := json.Unmarshal(b, &f); err != nil {
		o.Broken = "it can't be read: " + err.Error()
		return o
	}
	o.Network = f.Name
	if f.Type != "" { // no list, but one plugin
		f.Plugins = append(f.Plugins, f.plugin)
	}
	for _, one := range f.Plugins {
		o.Plugins = append(o.Plugins, one.Type)
		if one.IPAM.Type == "host-local" {
			o.reservations = append(o.reservations, reservations{one.IPAM.DataDir, f.Name})
		}
	}
	return o
}

// SetAside renames all others, so that runtimes read ours only, and gives their names. None
// is ever deleted: Restore brings them back.
func (p Places) SetAside() ([]string, error) {
	list, err := p.Others()
	if err != nil {
		return nil, err
	}
	var done []string
	var errs []error
	for _, o := range list {
		from := filepath.Join(p.Lists, o.File)
		to, err := freeName(from)
		if err == nil && !p.Dry {
			err = os.Rename(from, to)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("set %s aside: %w", from, err))
			continue
		}
		done = append(done, o.File)
	}
	return done, errors.Join(errs...)
}

// freeName gives a name for a list that is set aside: one that no other has, or that holds
// the same.
func freeName(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for i := range maxAside {
		name := asideName(path, i)
		there, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && bytes.Equal(there, content) {
			return name, nil
		}
	}
	return "", fmt.Errorf("%d others of its name are kept already", maxAside)
}

// asideName numbers all but the first.
func asideName(path string, i int) string {
	if i == 0 {
		return path + aside
	}
	return fmt.Sprintf("%s.%d%s", path, i, aside)
}

// Restore brings back what was set aside, and gives the names: of several of one name the
// last one. What is there again stays, and so does what was set aside of its name.
func (p Places) Restore() ([]string, error) {
	list, err := filepath.Glob(filepath.Join(p.Lists, "*"+aside))
	if err != nil {
		return nil, fmt.Errorf("look for lists that were set aside: %w", err)
	}
	var done []string
	var errs []error
	for _, first := range list {
		original := strings.TrimSuffix(first, aside)
		if !slices.Contains([]string{".conflist", ".conf", ".json"}, filepath.Ext(original)) {
			continue // a later one
		}
		if _, err := os.Lstat(original); err == nil {
			continue
		}
		last := first
		for i := 1; i < maxAside && slices.Contains(list, asideName(original, i)); i++ {
			last = asideName(original, i)
		}
		if err := os.Rename(last, original); err != nil {
			errs = append(errs, fmt.Errorf("bring %s back: %w", original, err))
			continue
		}
		done = append(done, filepath.Base(original))
	}
	return done, errors.Join(errs...)
}
