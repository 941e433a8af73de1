package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Refusing puts an nft first in PATH that fails as long as a file exists.
func Refusing(t testing.TB) (file string) {
	t.Helper()
	return insteadOfNft(t, "[ ! -e %[1]s ] || { echo 'Error: refused' >&2; exit 1; }\nexec %[2]s \"$@\"\n")
}

// KeepsForeign puts one there that does not delete a chain named foreign as long as a file
// exists.
func KeepsForeign(t testing.TB) (file string) {
	t.Helper()
	return insteadOfNft(t, "[ -e %[1]s ] || exec %[2]s \"$@\"\ncat >%[1]s\n"+
		"! grep -q 'delete chain .* foreign' %[1]s || { echo 'Error: refused' >&2; exit 1; }\nexec %[2]s \"$@\" <%[1]s\n")
}

// insteadOfNft puts a script there, whose text has places for a file and for the real nft.
func insteadOfNft(t testing.TB, script string) (file string) {
	t.Helper()
	dir := t.TempDir()
	file = filepath.Join(dir, "file")
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "nft"), fmt.Appendf(nil, "#!/bin/sh\n"+script, file, nft), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return file
}
