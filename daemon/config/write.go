package config

import (
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// Write writes the whole configuration as YAML to a file. A file that is there is
// replaced at once; what is no regular file is written to.
func (s Settings) Write(file string) error {
	text, err := yaml.Marshal(s.Config)
	if err != nil {
		return fmt.Errorf("write the configuration as YAML: %w", err)
	}
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return fmt.Errorf("write config file: %w", err)
		}
		return nil
	}
	if err := replace(file, text); err != nil {
		return fmt.Errorf("write config file %s: %w", file, err)
	}
	return nil
}

// replace writes beside the file and renames: a reader sees the old one or the new
// one.
func replace(file string, text []byte) error {
	if to, err := filepath.EvalSymlinks(file); err == nil {
		file = to
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}
