package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// Images of our own: no registry has them. The tests' own names of images come from
// the tests.
const (
	pauseImage = "localhost/pause:1"
	dnsImage   = "localhost/coredns:1"
)

// debianPackages are what tests expect in their images: shells, and tools of the
// network. What they depend on comes with them.
func debianPackages() []string {
	return []string{
		"busybox", "dash", "bash", "wget", "curl", "netcat-openbsd", "socat", "iperf", "bind9-dnsutils",
		"conntrack", "iproute2", "libc-bin", "util-linux",
	}
}

// makeImages writes an archive with all images.
func (c *Cache) makeImages(ctx context.Context, tmp, file string) error {
	names, err := c.testImages(ctx)
	if err != nil {
		return err
	}
	tools := filepath.Join(tmp, "tools")
	if err := debianRoot(ctx, filepath.Join(tmp, "packages"), tools); err != nil {
		return err
	}
	agnhost, err := c.agnhostRoot(ctx, filepath.Join(tmp, "agnhost"))
	if err != nil {
		return err
	}
	pause, err := c.onlyRoot(tmp, "pause")
	if err != nil {
		return err
	}
	// Tests pull this image from a registry that agnhost plays. It must not be the same as
	// the one that is there already: the kubelet (1.35 and later) would take that for pulled,
	// too, and ask its registry whether the next pod may have it.
	example := image{layers: []string{pause}, entrypoint: []string{"/pause"}, command: []string{"pulled"}}
	if err := example.serve(filepath.Join(agnhost, "var/registry/pause"), "testing", tmp); err != nil {
		return err
	}
	var images []image
	add := func(entry string, layers []string, names ...string) {
		i := image{names: names, layers: layers, command: []string{"sh"}}
		if entry != "" {
			i.command, i.entrypoint = nil, strings.Fields(entry)
		}
		images = append(images, i)
	}
	add("/pause", []string{pause}, append(names["pause"], pauseImage)...)
	names["coredns"] = []string{dnsImage}
	for _, name := range []string{"coredns", "regression-issue-74839"} {
		root, err := c.onlyRoot(tmp, name)
		if err != nil {
			return err
		}
		add("/"+name, []string{root}, names[name]...)
	}
	both := []string{tools, agnhost}
	add("", []string{tools}, append(names["busybox"], names["distroless-iptables"]...)...)
	add("/agnhost", both, append(names["agnhost"], names["glibc-dns-testing"]...)...)
	images[len(images)-1].command = []string{"pause"}
	// Tests want an nginx only as a server that answers at port 80.
	add("/agnhost netexec --http-port=80", both, names["nginx"]...)
	return writeArchive(file, tmp, images)
}

// onlyRoot makes the root of an image that holds one program.
func (c *Cache) onlyRoot(tmp, name string) (string, error) {
	root := filepath.Join(tmp, "only-"+name)
	if err := errors.Join(os.MkdirAll(root, 0o755), copyFile(c.Program(name), filepath.Join(root, name))); err != nil {
		return "", fmt.Errorf("image of %s: %w", name, err)
	}
	return root, nil
}

// testImages gives the names of images that tests ask for, by the last part of their
// path without the tag.
func (c *Cache) testImages(ctx context.Context) (map[string][]string, error) {
	out, err := exec.CommandContext(ctx, c.Program("e2e.test"), "--list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("list images of the tests: %w", err)
	}
	names := map[string][]string{}
	for _, name := range strings.Fields(string(out)) {
		short, _, tagged := strings.Cut(path.Base(name), ":")
		// Tests of credentials name images that must not be there.
		if tagged && !strings.Contains(name, "authenticated") && !strings.Contains(name, "invalid") {
			names[short] = append(names[short], name)
		}
	}
	for _, short := range []string{"agnhost", "busybox", "pause", "nginx", "distroless-iptables", "glibc-dns-testing", "regression-issue-74839"} {
		if len(names[short]) == 0 {
			return nil, fmt.Errorf("list images of the tests: no %s among them", short)
		}
	}
	return names, nil
}

// debianRoot downloads packages with all that they depend on, as for a machine that has
// none, and unpacks them. Nothing is installed.
func debianRoot(ctx context.Context, packages, root string) error {
	if err := os.MkdirAll(filepath.Join(packages, "partial"), 0o755); err != nil {
		return fmt.Errorf("download packages: %w", err)
	}
	args := append([]string{
		"-q", "-y", "-d", "--no-install-recommends",
		"-o", "Dir::State::status=/dev/null", "-o", "Dir::Cache::archives=" + packages, "-o", "Debug::NoLocking=1",
		"install",
	}, debianPackages()...)
	if out, err := exec.CommandContext(ctx, "apt-get", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("download Debian packages: %w: %s", err, lastLines(string(out), 3))
	}
	// Packages that know bin and usr/bin both end in one.
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(root, "usr", name), 0o755); err != nil {
			return fmt.Errorf("unpack packages: %w", err)
		}
		if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil {
			return fmt.Errorf("unpack packages: %w", err)
		}
	}
	files, err := filepath.Glob(filepath.Join(packages, "*.deb"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("unpack packages: none were downloaded")
	}
	for _, f := range files {
		if err := unpack(ctx, f, root); err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(f), err)
		}
	}
	return finishRoot(ctx, root)
}

// unpack unpacks a package. dpkg-deb's own way would put folders in the place of links
// to folders.
func unpack(ctx context.Context, file, root string) error {
	read := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", file)
	write := exec.CommandContext(ctx, "tar", "-x", "--keep-directory-symlink", "-C", root)
	pipe, err := read.StdoutPipe()
	if err != nil {
		return err
	}
	write.Stdin = pipe
	if err := read.Start(); err != nil {
		return err
	}
	out, err := write.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, lastLines(string(out), 3))
	}
	return errors.Join(err, read.Wait())
}

// finishRoot does what scripts of packages would have done, and leaves out what nobody
// reads in a container.
func finishRoot(ctx context.Context, root string) error {
	for _, folder := range []string{"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "var/cache"} {
		if err := os.RemoveAll(filepath.Join(root, folder)); err != nil {
			return fmt.Errorf("finish image: %w", err)
		}
	}
	for _, folder := range []string{"etc", "tmp", "var/run", "proc", "sys", "dev", "root", "usr/local/bin"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			return fmt.Errorf("finish image: %w", err)
		}
	}
	if err := os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky); err != nil {
		return fmt.Errorf("finish image: %w", err)
	}
	for file, text := range map[string]string{
		"passwd":        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\nuser-defined-in-image:x:1000:1000::/:/bin/sh\n",
		"group":         "root:x:0:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n",
		"nsswitch.conf": "hosts: files dns\n",
		"wgetrc":        "tries = 1\n", // as busybox's: tests count on a failure
	} {
		if err := os.WriteFile(filepath.Join(root, "etc", file), []byte(text), 0o644); err != nil {
			return fmt.Errorf("finish image: %w", err)
		}
	}
	return links(ctx, root)
}

// links gives programs the names that tests call them by. busybox stands in for those
// that are missing: its own nc, wget and shell differ too much from what tests expect.
func links(ctx context.Context, root string) error {
	bin := filepath.Join(root, "usr/bin")
	for name, target := range map[string]string{"sh": "dash", "nc": "nc.openbsd"} {
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil && !os.IsExist(err) {
			return fmt.Errorf("name programs: %w", err)
		}
	}
	if err := os.Symlink("/usr/bin/iperf", filepath.Join(root, "usr/local/bin/iperf")); err != nil {
		return fmt.Errorf("name programs: %w", err)
	}
	cmd := exec.CommandContext(ctx, "/usr/bin/busybox", "--list")
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	cmd.Dir = "/"
	applets, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("list what busybox can do: %w", err)
	}
	for _, a := range strings.Fields(string(applets)) {
		if there(filepath.Join(bin, a)) || there(filepath.Join(root, "usr/sbin", a)) {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(bin, a)); err != nil {
			return fmt.Errorf("name programs: %w", err)
		}
	}
	return nil
}

func there(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

// agnhostRoot collects what the image of the tests' own program has beside tools.
func (c *Cache) agnhostRoot(ctx context.Context, root string) (string, error) {
	if err := os.MkdirAll(filepath.Join(root, "uploads"), 0o755); err != nil {
		return "", fmt.Errorf("agnhost's files: %w", err)
	}
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	list.Dir = filepath.Join(c.root, "test/cluster/kubernetes")
	dir, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("agnhost's files: %w", err)
	}
	porter := filepath.Join(strings.TrimSpace(string(dir)), "test/images/agnhost/porter")
	for from, to := range map[string]string{
		c.Program("agnhost"): "agnhost", c.Program("coredns"): "coredns",
		porter + "/localhost.crt": "localhost.crt", porter + "/localhost.key": "localhost.key",
	} {
		if err := copyFile(from, filepath.Join(root, to)); err != nil {
			return "", fmt.Errorf("agnhost's files: %w", err)
		}
	}
	if err := os.Symlink("agnhost", filepath.Join(root, "agnhost-2")); err != nil {
		return "", fmt.Errorf("agnhost's files: %w", err)
	}
	return root, nil
}
