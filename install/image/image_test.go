package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"onerule/test/rig"
)

// programs gives a folder with both, copied so that their times differ each time.
func programs(t *testing.T) string {
	t.Helper()
	return copied(t, rig.Binary(t, "onerule", "onerule/plugin/onerule"), rig.Binary(t, "oneruled", "onerule/daemon/oneruled"))
}

// standIns gives a folder with the smaller one under both names: where it does not matter
// what they do, less is to be packed.
func standIns(t *testing.T) string {
	t.Helper()
	small := rig.Binary(t, "onerule", "onerule/plugin/onerule")
	return copied(t, small, small)
}

func copied(t *testing.T, onerule, oneruled string) string {
	t.Helper()
	dir := t.TempDir()
	for name, from := range map[string]string{"onerule": onerule, "oneruled": oneruled} {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o700)
		}
		if err == nil {
			err = os.Chtimes(filepath.Join(dir, name), time.Time{}, time.Now().Add(-time.Duration(len(dir))*time.Hour))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// build builds the image and gives the archive's files.
func build(t *testing.T, args ...string) (archive []byte, files map[string][]byte, said string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	var w bytes.Buffer
	if err := run(append([]string{"-o", path, "-bin", standIns(t)}, args...), &w); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string][]byte{}
	unpack(t, bytes.NewReader(archive), func(h *tar.Header, content []byte) { files[h.Name] = content })
	return archive, files, w.String()
}

func unpack(t *testing.T, r io.Reader, each func(*tar.Header, []byte)) {
	t.Helper()
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		each(h, content)
	}
}

// contents gives what an archive says that it is, and puts its layers' files into a folder.
func contents(t *testing.T, files map[string][]byte, root string) (v1.Image, savedImage) {
	t.Helper()
	var images []savedImage
	if err := json.Unmarshal(files["manifest.json"], &images); err != nil || len(images) != 1 {
		t.Fatalf("%v: %s", err, files["manifest.json"])
	}
	for name, content := range files {
		if named, isBlob := strings.CutPrefix(name, "blobs/sha256/"); isBlob && named != sum(content) {
			t.Errorf("%s has the digest %s", name, sum(content))
		}
	}
	var c v1.Image
	if err := json.Unmarshal(files[images[0].Config], &c); err != nil {
		t.Fatal(err)
	}
	var digests []digest.Digest
	for _, name := range images[0].Layers {
		z, err := gzip.NewReader(bytes.NewReader(files[name]))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest.FromBytes(plain))
		unpack(t, bytes.NewReader(plain), func(h *tar.Header, content []byte) { put(t, root, h, content) })
	}
	if !cmp.Equal(c.RootFS.DiffIDs, digests) || len(c.History) != len(digests) {
		t.Errorf("it says %+v, %+v of layers %q", c.RootFS, c.History, digests)
	}
	return c, images[0]
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// put writes a file of a layer. Its folder must have come before it.
func put(t *testing.T, root string, h *tar.Header, content []byte) {
	t.Helper()
	var err error
	path := filepath.Join(root, h.Name)
	if h.Typeflag == tar.TypeDir {
		err = os.Mkdir(path, fs.FileMode(h.Mode))
		if errors.Is(err, fs.ErrExist) { // another layer has it, too
			err = nil
		}
	} else {
		err = os.WriteFile(path, content, fs.FileMode(h.Mode))
	}
	if err != nil || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || !h.ModTime.Equal(time.Unix(0, 0)) {
		t.Errorf("%v: %+v", err, h)
	}
}

// listed gives the files below a folder, with their modes.
func listed(t *testing.T, root string) map[string]fs.FileMode {
	t.Helper()
	list := map[string]fs.FileMode{}
	if err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		list["/"+name] = info.Mode()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

// decoded gives a file of an archive as what it is.
func decoded[T any](t *testing.T, files map[string][]byte, name string) (v T) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(files[name]))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v: %s", name, err, files[name])
	}
	return v
}

// described finds what a descriptor of an OCI layout names, and compares them.
func described(t *testing.T, files map[string][]byte, d v1.Descriptor) string {
	t.Helper()
	name := "blobs/sha256/" + d.Digest.Encoded()
	if content, there := files[name]; !there || int64(len(content)) != d.Size || d.Digest.Encoded() != sum(content) {
		t.Errorf("%+v is not there as it says", d)
	}
	return name
}

func TestTheArchiveIsAnOCILayoutThatDockerReadsToo(t *testing.T) {
	for name, want := range map[string]struct{ end, short, tag string }{
		"onerule:test":                  {"/library/onerule:test", "onerule:test", "test"},
		"onerule":                       {"/library/onerule:latest", "onerule:latest", "latest"},
		"images.example:5000/x/onerule": {"images.example:5000/x/onerule:latest", "images.example:5000/x/onerule:latest", "latest"},
	} {
		t.Run(name, func(t *testing.T) {
			_, files, _ := build(t, "-name", name)
			if got := decoded[v1.ImageLayout](t, files, v1.ImageLayoutFile).Version; got != "1.0.0" {
				t.Errorf("layout version %q", got)
			}
			index := decoded[v1.Index](t, files, v1.ImageIndexFile)
			if index.SchemaVersion != 2 || index.MediaType != v1.MediaTypeImageIndex || len(index.Manifests) != 1 {
				t.Fatalf("got %+v", index)
			}
			d := index.Manifests[0]
			whole := d.Annotations[containerdName]
			if host, _, _ := strings.Cut(whole, "/"); !strings.HasSuffix(whole, want.end) || !strings.Contains(host, ".") {
				t.Errorf("containerd names it %q", whole)
			}
			if got := d.Annotations[v1.AnnotationRefName]; got != want.tag {
				t.Errorf("the tag is %q", got)
			}
			manifest := decoded[v1.Manifest](t, files, described(t, files, d))
			_, saved := contents(t, files, t.TempDir())
			got := savedImage{Config: described(t, files, manifest.Config), RepoTags: []string{want.short}}
			for _, l := range manifest.Layers {
				got.Layers = append(got.Layers, described(t, files, l))
			}
			if diff := cmp.Diff(saved, got); diff != "" {
				t.Errorf("the layout and Docker's manifest differ (-manifest.json +index.json):\n%s", diff)
			}
		})
	}
}

func TestTheImageHasWhatANodeNeedsAndNothingElse(t *testing.T) {
	_, files, said := build(t, "-bin", programs(t), "-name", "onerule:test", "-version", "v1")
	root := t.TempDir()
	c, image := contents(t, files, root)
	if len(image.RepoTags) != 1 || image.RepoTags[0] != "onerule:test" || c.OS != "linux" || c.Config.Labels["org.opencontainers.image.version"] != "v1" {
		t.Errorf("got %+v, %+v", image, c)
	}
	list := listed(t, root)
	library := regexp.MustCompile(`^/(usr/)?lib(64)?/([a-z0-9_-]+/)?(lib[a-z0-9+_-]+|ld-linux[a-z0-9_-]*)\.so\.[0-9]+$`)
	for path, mode := range list {
		known := library.MatchString(path) || slices.Contains([]string{"/usr/local/bin/onerule", "/usr/local/bin/oneruled", nftPath, authorities}, path)
		if !known || path != authorities && mode != 0o755 || path == authorities && mode != 0o644 {
			t.Errorf("%s %s", mode, path)
		}
		if !strings.Contains(said, "  "+path+"\n") {
			t.Errorf("%s is not said: %s", path, said)
		}
	}
	t.Run("and its programs run in it", func(t *testing.T) {
		for program, want := range map[string]string{"oneruled": "oneruled version ", "nft": "nftables v", "/usr/local/bin/onerule": "CNI"} {
			if out := inRoot(t, root, c.Config.Env, program, "--version"); !strings.Contains(out, want) {
				t.Errorf("%s --version: got %q, want it with %q", program, out, want)
			}
		}
	})
	t.Run("of which another version brings one layer", func(t *testing.T) {
		_, files, _ := build(t)
		_, other := contents(t, files, t.TempDir())
		if other.Layers[0] != image.Layers[0] || other.Layers[1] == image.Layers[1] {
			t.Errorf("layers %q became %q", image.Layers, other.Layers)
		}
	})
	t.Run("what it runs is there", func(t *testing.T) {
		if len(c.Config.Entrypoint) != 1 || list[c.Config.Entrypoint[0]] == 0 {
			t.Errorf("it runs %q", c.Config.Entrypoint)
		}
	})
}

func TestOfTheSameFilesTheImageIsTheSame(t *testing.T) {
	one, _, _ := build(t)
	two, _, _ := build(t)
	if !bytes.Equal(one, two) {
		t.Errorf("two archives, of %d and %d bytes, differ", len(one), len(two))
	}
}

func TestWhatCannotBeInAnImageIsRefusedInALine(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no programs":            {[]string{"-o", filepath.Join(t.TempDir(), "i"), "-bin", "/nowhere"}, "collect files: stat /nowhere/onerule: no such file or directory"},
		"neither file nor root":  {nil, "give either -o or -root, and nothing else"},
		"both":                   {[]string{"-o", "a", "-root", "b"}, "give either -o or -root, and nothing else"},
		"a folder that is not":   {[]string{"-o", "/nowhere/i", "-bin", standIns(t)}, "write image: "},
		"programs with a loader": {[]string{"-o", filepath.Join(t.TempDir(), "i"), "-bin", dynamic(t)}, "is not static: build it with CGO_ENABLED=0"},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(c.args, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// dynamic gives a folder whose programs load libraries.
func dynamic(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"onerule", "oneruled"} {
		if err := os.Symlink(nftPath, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The Dockerfile lets this program collect the files, so what is left to differ is what stands
// in the file itself.
func TestTheDockerfileMakesTheSameImage(t *testing.T) {
	_, files, _ := build(t)
	root, placed := t.TempDir(), t.TempDir()
	c, _ := contents(t, files, root)
	t.Run("the same files", func(t *testing.T) {
		if err := run([]string{"-bin", standIns(t), "-root", placed}, io.Discard); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(listed(t, root), listed(t, placed)); diff != "" {
			t.Errorf("(-archive +Dockerfile):\n%s", diff)
		}
		for path := range listed(t, placed) {
			if sumOf(t, root+path) != sumOf(t, placed+path) {
				t.Errorf("%s differs", path)
			}
		}
	})
	text := read(t, "../Dockerfile")
	stages := strings.Split(text, "\nFROM ")
	last := stages[len(stages)-1]
	entrypoint, err := json.Marshal(c.Config.Entrypoint)
	if err != nil {
		t.Fatal(err)
	}
	var gomod []string
	if gomod = regexp.MustCompile(`\ngo (\d+\.\d+)`).FindStringSubmatch(read(t, "../../go.mod")); gomod == nil {
		t.Fatal("go.mod has no version of Go")
	}
	for where, wants := range map[string][]string{
		last: {"scratch\n", "COPY --from=files /image /\n", "ENV " + c.Config.Env[0] + "\n", "ENTRYPOINT " + string(entrypoint) + "\n"},
		text: {"FROM golang:" + gomod[1] + "-", "RUN /collect -bin /programs -root /image\n", "./plugin/onerule ./daemon/oneruled", "./install/image"},
	} {
		for _, want := range wants {
			if !strings.Contains(where, want) {
				t.Errorf("the Dockerfile has no %q", want)
			}
		}
	}
	if n := strings.Count(last, "COPY"); n != 1 {
		t.Errorf("its last stage copies %d times, want once", n)
	}
	t.Run("of the packages that make setup installs", func(t *testing.T) {
		setup := read(t, "../../test/setup.sh")
		packages := regexp.MustCompile(`install -y --no-install-recommends ([a-z -]+)\n`).FindStringSubmatch(text)
		if packages == nil {
			t.Fatal("it installs nothing")
		}
		for _, name := range strings.Fields(packages[1]) {
			if !regexp.MustCompile(`(?m)^\S+ +` + name + `$`).MatchString(setup) {
				t.Errorf("make setup does not install %s", name)
			}
		}
	})
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func sumOf(t *testing.T, path string) string { return sum([]byte(read(t, path))) }

// A library that another one needs is found, too, and one that is nowhere is named.
func TestLibrariesOfLibrariesAreCollected(t *testing.T) {
	list, err := machine("/").libraries(nftPath)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, f := range list {
		have[filepath.Base(f.path)] = true
	}
	out, err := exec.Command("ldd", nftPath).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\t(?:/lib64/)?(\S+) .*\(0x`).FindAllStringSubmatch(string(out), -1) {
		if name := m[1]; !strings.HasPrefix(name, "linux-vdso") && !have[name] {
			t.Errorf("%s is not among %q", name, slices.Sorted(maps.Keys(have)))
		}
	}
	if _, err := machine("/").library("libnowhere.so.1"); err == nil || err.Error() != "libnowhere.so.1 is not on this machine" {
		t.Errorf("got %v", err)
	}
}
