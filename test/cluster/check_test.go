package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	someMounts = `24 1 0:22 / /sys rw - sysfs sysfs rw
30 24 0:26 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
34 30 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
`
	someCgroups = `4:memory:/docker/abc/x
3:cpu,cpuacct:/
2:pids:/nowhere/mounted
1:name=systemd:/user.slice
0::/user.slice
`
)

// machineWith makes a /proc of files.
func machineWith(t *testing.T, files map[string]string) surroundings {
	t.Helper()
	proc := t.TempDir()
	for name, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Join(proc, filepath.Dir(name)), 0o755),
			os.WriteFile(filepath.Join(proc, name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return surroundings{proc, 0, func(string) (string, error) { return "", nil }}
}

func TestWhatTheMachineLacksIsSaidInOneLine(t *testing.T) {
	whole := map[string]string{
		"filesystems": "nodev\tsysfs\n\text4\nnodev\toverlay\n", "self/mountinfo": someMounts, "self/cgroup": someCgroups,
	}
	without := func(name, instead string) map[string]string {
		files := map[string]string{}
		for n, text := range whole {
			if n != name {
				files[n] = text
			} else if instead != "" {
				files[n] = instead
			}
		}
		return files
	}
	for _, c := range []struct {
		name   string
		files  map[string]string
		change func(*surroundings)
		want   string
	}{
		{"not root", whole, func(s *surroundings) { s.uid = 1000 }, "needs root: namespaces, mounts and cgroups"},
		{"no overlay file system", without("filesystems", "\text4\n"), nil, "the kernel has no overlay file system, which containers lie on (modprobe overlay)"},
		{"no cgroups in the kernel", without("self/cgroup", ""), nil, "the kernel has no cgroups, which hold containers: open "},
		{"no cgroups mounted", without("self/mountinfo", "24 1 0:22 / /sys rw - sysfs sysfs rw\n"), nil, "no cgroups are mounted, which hold containers (mount one at /sys/fs/cgroup)"},
		{"no runc", whole, func(s *surroundings) {
			s.find = func(p string) (string, error) {
				if p == "runc" {
					return "", os.ErrNotExist
				}
				return p, nil
			}
		}, "runc is missing (sh test/setup.sh runc installs it)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := machineWith(t, c.files)
			if c.change != nil {
				c.change(&s)
			}
			_, err := s.check()
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("error is %v, want %s", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("error has several lines: %v", err)
			}
		})
	}
	if _, err := machineWith(t, whole).check(); err != nil {
		t.Errorf("a machine that has everything: %v", err)
	}
}

func TestHierarchies(t *testing.T) {
	for _, c := range []struct {
		name, mounts, own string
		want              []string
	}{
		{"both versions, one of them a part", someMounts, someCgroups, []string{
			"/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/systemd/user.slice", "/sys/fs/cgroup/unified/user.slice",
		}},
		{
			"version 2 alone", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n", "0::/user.slice/session-3.scope\n",
			[]string{"/sys/fs/cgroup"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := hierarchiesOf(c.mounts, c.own)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("hierarchies (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAFolderThatIsNoClustersIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "thesis.tex")
	if err := os.WriteFile(precious, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	want := dir + " is there, and is no cluster's: remove it, or name another folder"
	if err := makeRoom(dir); err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
	if err := Down(dir); err == nil || err.Error() != "no cluster in "+dir {
		t.Errorf("taking down no cluster: %v", err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

func TestNoImageYet(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("ONERULE_BIN", bin)
	o := Options{With: Onerule}
	want := "no image yet in " + bin + "/onerule-image.tar (make image builds it)"
	if err := o.image("/"); err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
	o.With = KubeProxy
	if err := o.image("/"); err != nil {
		t.Errorf("without our image's need: %v", err)
	}
}
