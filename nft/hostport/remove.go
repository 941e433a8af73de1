package hostport

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Remove takes the tables out, at the end of an installation. Claims stay in their folder.
func Remove() error {
	for _, f := range families() {
		conn := nftables.Conn{}
		conn.DelTable(f.table())
		if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete table %s %s: %w", f.word(), TableName, err)
		}
	}
	return nil
}
