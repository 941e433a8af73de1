package main

import (
	"encoding/json"
	"fmt"
	"io"

	"onerule/install"
)

// Installed is what install has done, or would do. In words it is told as it is done, and
// for programs at the end, also of what failed half-way.
type installed struct {
	w    io.Writer
	json bool

	DryRun bool     `json:"dryRun"`
	Files  []placed `json:"files"`
	// Unpublished says why there is no list of plugins.
	Unpublished string `json:"unpublished,omitempty"`
	// Adopted is the folder of host-local's reservations that is taken over.
	Adopted  string          `json:"adopted,omitempty"`
	SetAside []string        `json:"setAside"`
	Others   []install.Other `json:"others"`
	Notes    []string        `json:"notes,omitempty"`
}

// A placed is a file that is there.
type placed struct {
	Path string `json:"path"`
	// Written says that it was not as it should be.
	Written bool `json:"written"`
}

func (d *installed) say(format string, args ...any) {
	if !d.json {
		fmt.Fprintf(d.w, format+"\n", args...)
	}
}

// would gives what is done in words: what would be done, if nothing is to be.
func (d *installed) would(done, would string) string {
	if d.DryRun {
		return would
	}
	return done
}

func (d *installed) file(path string, written bool) {
	d.Files = append(d.Files, placed{path, written})
	if !written {
		d.say("%s is as it should be", path)
		return
	}
	d.say("%s %s", path, d.would("written", "would be written"))
}

func (d *installed) unpublished(why string) {
	d.Unpublished = why
	d.say("no list of plugins %s published: %s", d.would("is", "would be"), why)
}

func (d *installed) adopted(folder string) {
	if d.Adopted = folder; folder != "" {
		d.say("reservations of host-local %s taken over from %s", d.would("are", "would be"), folder)
	}
}

func (d *installed) aside(names []string) {
	for _, name := range names {
		d.say("%s %s", name, d.would("set aside", "would be set aside"))
	}
	d.SetAside = append(d.SetAside, names...)
}

// others tells of other lists, and gives whether one of them is taken before ours.
func (d *installed) others(list []install.Other) (shadowed bool) {
	for _, o := range list {
		d.say("%s", o)
		shadowed = shadowed || o.First
	}
	d.Others = append(d.Others, list...)
	return shadowed
}

func (d *installed) note(text string) {
	d.Notes = append(d.Notes, text)
	d.say("%s", text)
}

// end tells it to programs.
func (d *installed) end() error {
	if !d.json {
		return nil
	}
	return writeJSON(d.w, d)
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write what was done: %w", err)
	}
	return nil
}
