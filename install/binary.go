package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// versionPatience is how long a plugin may take to tell its versions.
const versionPatience = 10 * time.Second

// versions are those of CNI that our list speaks, the last one being that of runtimes which
// choose.
func versions() []string { return []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} }

// PlaceBinary makes a plugin the node's. It replaces one that runs, and is asked for its
// version before it does.
func (p Places) PlaceBinary(ctx context.Context, plugin string) (changed bool, err error) {
	content, err := os.ReadFile(plugin)
	if err != nil {
		return false, fmt.Errorf("read the plugin: %w", err)
	}
	if p.Dry {
		return !holds(p.Binary(), content, 0o755), speaks(ctx, plugin)
	}
	return place(p.Binary(), content, 0o755, func(temp string) error { return speaks(ctx, temp) })
}

// speaks says whether a program is a plugin for our list.
func speaks(ctx context.Context, program string) error {
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	cmd.Stdin = strings.NewReader(`{"cniVersion": "1.0.0"}`)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("ask it for its versions: %w: %s", err, strings.TrimSpace(errs.String()))
	}
	var answer struct {
		Supported []string `json:"supportedVersions"`
	}
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		return fmt.Errorf("ask it for its versions: %w", err)
	}
	for _, v := range versions() {
		if !slices.Contains(answer.Supported, v) {
			return fmt.Errorf("it does not speak version %s of CNI", v)
		}
	}
	return nil
}

// executable says whether a plugin can be run from where runtimes look for it.
func (p Places) executable(name string) error {
	path := filepath.Join(p.Binaries, name)
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return errors.New(path + " is no program")
	}
	return nil
}
