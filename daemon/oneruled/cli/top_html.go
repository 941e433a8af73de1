package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"onerule/daemon/inspect"
	"onerule/daemon/inspect/page"
)

// writePage writes a reading as a page: beside the file and renamed, so that nobody reads
// half of it, or to out if the file is "-".
func writePage(out io.Writer, file string, r inspect.Reading) error {
	if file == "-" {
		return page.Page{Reading: r}.Write(out)
	}
	var body bytes.Buffer
	if err := (page.Page{Reading: r}).Write(&body); err != nil {
		return err
	}
	// root must not put a page in place of a device, or of what a link leads to.
	if info, err := os.Lstat(file); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("--html: %s is there, and no ordinary file: - is standard output", file)
	}
	beside, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	_, err = beside.Write(body.Bytes())
	if closed := beside.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(beside.Name(), file)
	}
	if err != nil {
		_ = os.Remove(beside.Name())
		return fmt.Errorf("--html: write %s: %w", file, err)
	}
	return nil
}
