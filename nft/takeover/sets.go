package takeover

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"onerule/nft/dump"
)

// Of linux/netfilter/ipset/ip_set.h, which golang.org/x/sys does not have.
const (
	setDestroy = 3 // IPSET_CMD_DESTROY
	setList    = 7 // IPSET_CMD_LIST

	setProtocol  = 1 // IPSET_ATTR_PROTOCOL
	setName      = 2 // IPSET_ATTR_SETNAME
	setFlags     = 6 // IPSET_ATTR_FLAGS
	setNamesOnly = 2 // IPSET_FLAG_LIST_SETNAME

	setVersion = 6 // every kernel since 2.6.39 knows it
)

// findSets finds kube-proxy's sets. To ask a kernel for sets that has not loaded ipset
// would load it.
func findSets(_ context.Context, l *Leftovers) error {
	if _, err := os.Stat("/sys/module/ip_set"); err != nil {
		return nil
	}
	err := withSets(func(c *dump.Conn) error {
		return c.Run(unix.NFNL_SUBSYS_IPSET<<8|setList, aboutSets(dump.Attr(setFlags, binary.BigEndian.AppendUint32(nil, setNamesOnly))), l.takeSet)
	})
	if err != nil {
		return fmt.Errorf("list sets of ipset: %w", err)
	}
	slices.Sort(l.Sets)
	return nil
}

func (l *Leftovers) takeSet(body []byte) error {
	attrs, err := dump.Attributes(body)
	if name := dump.Text(dump.Find(attrs, setName)); isProxySet(name) {
		l.Sets = append(l.Sets, name)
	}
	return err
}

func destroySet(name string) error {
	err := withSets(func(c *dump.Conn) error {
		return c.Ask(unix.NFNL_SUBSYS_IPSET<<8|setDestroy, aboutSets(dump.Name(setName, name)), func([]byte) error { return nil })
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("destroy set %s of ipset: %w", name, err)
	}
	return nil
}

func withSets(f func(*dump.Conn) error) error {
	c, err := dump.Open()
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close())
}

func aboutSets(attr []byte) []byte {
	return dump.Request(unix.AF_INET, dump.Attr(setProtocol, []byte{setVersion}), attr)
}
