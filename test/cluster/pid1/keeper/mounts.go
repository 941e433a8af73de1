package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mount makes the folder if need be.
func mount(source, target, kind string, flags uintptr, data string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", target, err)
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, target, err)
	}
	return nil
}

func folders(list ...string) error {
	for _, f := range list {
		if err := os.MkdirAll(f, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", f, err)
		}
	}
	return nil
}

func controlMounts(string, string) error {
	if err := mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	return folders("/run/lock", "/run/netns")
}

// nodeMounts makes the mount namespace look like a machine of its own: it has the
// machine's programs, and its own state.
func nodeMounts(name, dir string) error {
	if err := mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return err
	}
	if err := cgroupMounts(); err != nil {
		return err
	}
	// Without it nothing is counted, and the rest works.
	_ = mount("bpf", "/sys/fs/bpf", "bpf", 0, "")
	if err := mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	if err := folders("/run/lock", "/run/netns", "/run/containerd"); err != nil {
		return err
	}
	for _, d := range []string{"lib", "log"} {
		own := filepath.Join(dir, "var-"+d)
		if err := folders(own); err != nil {
			return err
		}
		if err := mount(own, "/var/"+d, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for _, d := range []string{"etc", "opt"} {
		if err := overlay("/"+d, filepath.Join(dir, "over", d)); err != nil {
			return err
		}
	}
	if err := files(name); err != nil {
		return err
	}
	if err := sysctls(); err != nil {
		return err
	}
	// Containers get what is mounted here later.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts: %w", err)
	}
	return nil
}

// overlay puts a layer of the node's own over a folder of the machine.
func overlay(folder, own string) error {
	if err := folders(own+"/up", own+"/work", folder); err != nil {
		return err
	}
	return mount("overlay", folder, "overlay", 0,
		fmt.Sprintf("lowerdir=%s,upperdir=%s/up,workdir=%s/work", folder, own, own))
}

// files are those of /etc that differ, and of CNI, where the machine may have its own.
func files(name string) error {
	for _, d := range []string{"/etc/cni", "/opt/cni"} {
		if err := os.RemoveAll(d); err != nil {
			return fmt.Errorf("leave out the machine's: %w", err)
		}
	}
	if err := folders("/etc/cni/net.d", "/opt/cni/bin"); err != nil {
		return err
	}
	for file, text := range map[string]string{
		"hosts":    "127.0.0.1 localhost\n::1 localhost\n",
		"hostname": name + "\n",
		// No name server: nothing may leave the cluster.
		"resolv.conf": "options ndots:1\n",
	} {
		// The machine's may be a link to where nothing is here.
		_ = os.Remove("/etc/" + file)
		if err := os.WriteFile("/etc/"+file, []byte(text), 0o644); err != nil {
			return fmt.Errorf("name the node: %w", err)
		}
	}
	return nil
}

// sysctls are settings of the whole machine that a kubelet writes: it gets files of
// its own that hold what it wants.
func sysctls() error {
	if err := folders("/run/sysctl"); err != nil {
		return err
	}
	for key, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0",
		"kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		file := "/run/sysctl/" + strings.ReplaceAll(key, "/", ".")
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return fmt.Errorf("hide a sysctl: %w", err)
		}
		if err := unix.Mount(file, "/proc/sys/"+key, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("hide sysctl %s: %w", key, err)
		}
	}
	return nil
}
