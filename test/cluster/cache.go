package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// imagesPiece is the archive with all images. imageRecipe is raised when they get other
// contents from the same programs.
const (
	imagesPiece = "images.tar"
	imageRecipe = 3
)

// A Cache is where what was built is kept: a folder for each module, named after all that
// makes a difference, so that a change of one leaves the others as they are. A piece gets
// its name when it is whole, and its size is on record beside it.
type Cache struct {
	root     string            // of the repository
	dir      string            // of all folders
	folders  map[string]string // by module, and that of images
	programs []piece
	images   bool // whether there is the archive
}

// DefaultCache gives that of this tree and Go, below the user's cache.
func DefaultCache(ctx context.Context) (*Cache, error) {
	root, err := repository(ctx)
	if err != nil {
		return nil, err
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("folder of caches: %w", err)
	}
	return newCache(root, filepath.Join(base, "onerule", "cluster"), pieces(), true)
}

func newCache(root, dir string, programs []piece, images bool) (*Cache, error) {
	c := &Cache{root: root, dir: dir, folders: map[string]string{}, programs: programs, images: images}
	all := ""
	for _, p := range programs {
		if c.folders[p.module] != "" {
			continue
		}
		digest, err := digest(root, p.module, programs)
		if err != nil {
			return nil, err
		}
		c.folders[p.module] = filepath.Join(dir, filepath.Base(p.module)+"-"+digest)
		all += digest
	}
	if images {
		sum := sha256.Sum256(fmt.Append(nil, all, imageRecipe, debianPackages()))
		c.folders[imagesPiece] = filepath.Join(dir, fmt.Sprintf("images-%x", sum[:8]))
	}
	return c, nil
}

// digest is that of a module's versions, checksums and programs of ours, of Go, and of
// flags.
func digest(root, module string, programs []piece) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOARCH)
	files := []string{"go.mod", "go.sum"}
	for _, p := range programs {
		if p.module != module {
			continue
		}
		fmt.Fprintf(h, "%+v\n", p)
		if strings.HasPrefix(p.path, ".") {
			files = append(files, filepath.Join(p.path, "main.go"))
		}
	}
	if module == ours { // its other dependencies are in no piece
		files = files[2:]
	}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(root, module, file))
		if err != nil {
			return "", fmt.Errorf("versions of pieces: %w", err)
		}
		fmt.Fprintf(h, "%s %d\n%s", file, len(text), text)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), nil
}

// repository gives its top folder.
func repository(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	root := filepath.Dir(strings.TrimSpace(string(out)))
	if _, err := os.Stat(filepath.Join(root, "test/cluster/kubernetes/go.mod")); err != nil {
		return "", errors.New("find the repository: run this inside it")
	}
	return root, nil
}

// Program gives the file of a program.
func (c *Cache) Program(name string) string {
	for _, p := range c.programs {
		if p.name == name {
			return filepath.Join(c.folders[p.module], name)
		}
	}
	return filepath.Join(c.dir, "no-such-piece", name)
}

// path is where programs are found by their names.
func (c *Cache) path() []string {
	var folders []string
	for _, p := range c.programs {
		folders = append(folders, c.folders[p.module])
	}
	slices.Sort(folders)
	return slices.Compact(folders)
}

// Images gives the archives that every node gets.
func (c *Cache) Images() []string {
	return []string{filepath.Join(c.folders[imagesPiece], imagesPiece)}
}

// bin is where make puts our own programs.
func (c *Cache) bin() string {
	if bin := os.Getenv("ONERULE_BIN"); bin != "" {
		return bin
	}
	return filepath.Join(c.root, "bin")
}

// Missing names the pieces that are not there, and those that are not whole.
func (c *Cache) Missing() []string {
	var names []string
	for _, p := range c.programs {
		if !c.whole(p.name) {
			names = append(names, p.name)
		}
	}
	if c.images && !c.whole(imagesPiece) {
		names = append(names, imagesPiece)
	}
	return names
}

func (c *Cache) file(name string) string {
	if name == imagesPiece {
		return c.Images()[0]
	}
	return c.Program(name)
}

func (c *Cache) record(name string) string { return c.file(name) + ".size" }

// whole says whether a piece has the size that it was built with.
func (c *Cache) whole(name string) bool {
	info, err := os.Stat(c.file(name))
	if err != nil {
		return false
	}
	size, err := os.ReadFile(c.record(name))
	return err == nil && strings.TrimSpace(string(size)) == strconv.FormatInt(info.Size(), 10)
}

// keep takes a finished file in as a piece. Its bytes are on the disk before its name
// is there, and its name before its size is on record: of what is interrupted, nothing
// is taken for whole.
func (c *Cache) keep(name, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	record := c.record(name)
	if err := os.MkdirAll(filepath.Dir(record), 0o755); err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	if err := os.Remove(record); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	if err := os.Rename(file, c.file(name)); err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	if err := os.WriteFile(record, []byte(strconv.FormatInt(info.Size(), 10)), 0o644); err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	return nil
}

// lock makes others that build wait. It is let go when the file is closed.
func (c *Cache) lock() (*os.File, error) {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the cache: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cache: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the cache: %w", err), f.Close())
	}
	return f, nil
}
