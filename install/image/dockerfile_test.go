package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// A builder is buildah with a storage of its own. Its containers are chroots: they need no
// cgroups, and no network but the machine's, which apt-get has to have.
type builder struct {
	t       *testing.T
	storage []string
}

func newBuilder(t *testing.T) *builder {
	t.Helper()
	dir := t.TempDir()
	return &builder{t, []string{"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}}
}

// do runs a command of buildah and gives what it prints.
func (b *builder) do(command string, args ...string) string {
	b.t.Helper()
	cmd := exec.Command("buildah", slices.Concat(b.storage, []string{command}, args)...)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "BUILDAH_ISOLATION=chroot")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		b.t.Fatalf("buildah %s %q: %v\n%s%s", command, args, err, out, said.Bytes())
	}
	return strings.TrimSpace(string(out))
}

// container gives one of an image that is here, until the test ends.
func (b *builder) container(image string) string {
	b.t.Helper()
	name := b.do("from", "--pull-never", image)
	b.t.Cleanup(func() { b.do("rm", name) })
	return name
}

// base makes an image of what add puts into a container.
func (b *builder) base(image, from, add, to string, env ...string) {
	b.t.Helper()
	name := b.container(from)
	b.do("add", "--quiet", name, add, to)
	for _, e := range env {
		b.do("config", "--env", e, name)
	}
	b.do("commit", "--quiet", name, image)
}

// bases makes those that the Dockerfile names, out of Debian's packages and of this machine's
// Go: there is no registry to ask.
func (b *builder) bases(goroot string) {
	b.t.Helper()
	debian := filepath.Join(b.t.TempDir(), "debian.tar")
	if out, err := exec.Command("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "bookworm", debian).CombinedOutput(); err != nil {
		b.t.Fatalf("mmdebstrap: %v: %s", err, out)
	}
	const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	b.base("docker.io/library/debian:bookworm-slim", "scratch", debian, "/", "PATH="+path)
	b.base("docker.io/library/golang:1.26-bookworm", "docker.io/library/debian:bookworm-slim", goroot, "/usr/local/go",
		"PATH=/go/bin:/usr/local/go/bin:"+path, "GOPATH=/go", "GOCACHE=/go/cache", "GOTOOLCHAIN=local")
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatalf("go env %s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}

// What a builder makes of the Dockerfile, step by step, is the image of make image: the same
// files, of the same source the same bytes, and the same command. It takes a minute or two.
func TestTheDockerfileIsBuilt(t *testing.T) {
	if os.Getenv("ONERULE_DOCKERFILE") != "1" {
		t.Skip("builds a Debian and a Go image first: make dockerfile runs it")
	}
	bin := os.Getenv("ONERULE_BIN")
	version := versionOf(t, filepath.Join(bin, "oneruled"))
	b := newBuilder(t)
	b.bases(goEnv(t, "GOROOT"))
	b.do("build", "--pull-never", "--network", "host", "--quiet", "-f", "install/Dockerfile", "-t", "onerule:dev", "--build-arg", "VERSION="+version,
		"--volume", goEnv(t, "GOMODCACHE")+":/go/pkg/mod", "--volume", goEnv(t, "GOCACHE")+":/go/cache", ".")
	got := b.do("mount", b.container("localhost/onerule:dev"))

	_, files, _ := build(t, "-bin", bin)
	want := t.TempDir()
	c, _ := contents(t, files, want)
	if diff := cmp.Diff(listed(t, want), listed(t, got)); diff != "" {
		t.Errorf("the files (-make image +Dockerfile):\n%s", diff)
	}
	for _, program := range []string{"/usr/local/bin/onerule", "/usr/local/bin/oneruled"} {
		if sumOf(t, want+program) != sumOf(t, got+program) {
			t.Errorf("%s is another than that of make build", program)
		}
	}
	var said struct{ OCIv1 v1.Image }
	if err := json.Unmarshal([]byte(b.do("inspect", "--type", "image", "localhost/onerule:dev")), &said); err != nil {
		t.Fatal(err)
	}
	if got := said.OCIv1.Config; !cmp.Equal(got.Entrypoint, c.Config.Entrypoint) || !cmp.Equal(got.Env, c.Config.Env) || len(got.Cmd) != 0 {
		t.Errorf("it runs %q %q with %q, that of make image %q with %q", got.Entrypoint, got.Cmd, got.Env, c.Config.Entrypoint, c.Config.Env)
	}
	for program, want := range map[string]string{"oneruled": "oneruled version " + version, "nft": "nftables v", "/usr/local/bin/onerule": version} {
		if said := inRoot(t, got, c.Config.Env, program, "--version"); !strings.Contains(said, want) {
			t.Errorf("%s --version: got %q, want it with %q", program, said, want)
		}
	}
}

func versionOf(t *testing.T, oneruled string) string {
	t.Helper()
	out, err := exec.Command(oneruled, "--version").Output()
	fields := strings.Fields(string(out))
	if err != nil || len(fields) < 3 {
		t.Fatalf("%s --version: %v: %q", oneruled, err, out)
	}
	return fields[2]
}
