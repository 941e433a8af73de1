package plugin_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"onerule/test/netns"
)

// What the plugin keeps is for nobody but root to read.
func TestModesOfTheState(t *testing.T) {
	n := newNode(t)
	theirs := hostLocal(t, map[string]string{"10.1.0.9": "old"})
	more := object{"adopt": theirs}
	n.added(t, add("c1", "eth0", netns.New(t, "pod"), n.withPorts(more, bothProtocols(hostPort)...)))
	n.added(t, add("c2", "eth0", netns.New(t, "next"), n.config("1.1.0", more)))
	n.succeed(t, add("c2", "eth0", netns.New(t, "next"), n.config("1.1.0", more)).as("DEL"))
	n.Sysctl(t, "net.ipv4.ip_forward", "0")
	n.succeed(t, statusOf(n, podRange4, podRange6)) // which remembers that
	n.Run(t, "sh", "-c", "echo '{' >"+filepath.Join(n.dataDir, "pods/attachments/c3:eth0.json"))
	n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", more)}) // which puts it aside
	files := map[string]int{}
	err := filepath.WalkDir(n.dataDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := os.FileMode(0o600)
		if d.IsDir() {
			want |= fs.ModeDir | 0o100
		}
		if info.Mode() != want && filepath.Base(path) != "c3:eth0.json" { // that one is not the plugin's
			t.Errorf("%s: got %s, want %s", path, info.Mode(), want)
		}
		files[filepath.Base(filepath.Dir(path))]++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"pods", "attachments", "addresses", "released", "quarantine", "hostports"} {
		if files[folder] == 0 {
			t.Errorf("nothing is in %s: this shows nothing of it", folder)
		}
	}
}
