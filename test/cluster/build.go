package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Build builds the pieces that are missing or not whole, and tells out of each. Cold,
// that takes half an hour on two cores.
func (c *Cache) Build(ctx context.Context, out io.Writer) error {
	lock, err := c.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	missing := c.Missing()
	if len(missing) == 0 {
		return nil
	}
	tmp, err := os.MkdirTemp(c.dir, "half-")
	if err != nil {
		return fmt.Errorf("build pieces: %w", err)
	}
	defer os.RemoveAll(tmp)
	byName := map[string]piece{}
	for _, p := range c.programs {
		byName[p.name] = p
	}
	for i, name := range missing {
		fmt.Fprintf(out, "[%2d of %d] %s ...", i+1, len(missing), name)
		begin := time.Now()
		file := filepath.Join(tmp, name)
		if p, program := byName[name]; program {
			err = p.build(ctx, c.root, file)
		} else {
			err = c.makeImages(ctx, tmp, file)
		}
		if err == nil {
			err = c.keep(name, file)
		}
		if err != nil {
			fmt.Fprintln(out, " failed")
			return fmt.Errorf("build %s: %w", name, errors.Join(err, context.Cause(ctx)))
		}
		fmt.Fprintf(out, " %.0f s\n", time.Since(begin).Seconds())
	}
	return nil
}

// build builds one program.
func (p piece) build(ctx context.Context, root, file string) error {
	args, err := p.arguments(root)
	if err != nil {
		return err
	}
	args = append(args, "-o", file, p.path)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(root, p.module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, lastLines(string(out), 5))
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
