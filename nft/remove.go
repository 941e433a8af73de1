package nft

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"onerule/nft/dump"
)

// DeleteTable deletes our table of a family with everything in it. One that is not there
// is no error.
func DeleteTable(family Family) error {
	conn := nftables.Conn{}
	conn.DelTable(kernelTable(family))
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete table %s %s: %w", family, TableName, dump.First(err))
	}
	return nil
}
