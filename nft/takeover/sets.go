package takeover

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
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
	messages, err := askSets(setList, netlink.Dump, netlink.Attribute{Type: setFlags, Data: binary.BigEndian.AppendUint32(nil, setNamesOnly)})
	if err != nil {
		return fmt.Errorf("list sets of ipset: %w", err)
	}
	for _, m := range messages {
		if err := attributes(m, func(d *netlink.AttributeDecoder) {
			if d.Type() == setName && isProxySet(d.String()) {
				l.Sets = append(l.Sets, d.String())
			}
		}); err != nil {
			return err
		}
	}
	slices.Sort(l.Sets)
	return nil
}

func destroySet(name string) error {
	_, err := askSets(setDestroy, netlink.Acknowledge, netlink.Attribute{Type: setName, Data: append([]byte(name), 0)})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("destroy set %s of ipset: %w", name, err)
	}
	return nil
}

func askSets(command int, flags netlink.HeaderFlags, attrs ...netlink.Attribute) ([]netlink.Message, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	defer c.Close()
	data, err := netlink.MarshalAttributes(append([]netlink.Attribute{{Type: setProtocol, Data: []byte{setVersion}}}, attrs...))
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return c.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_IPSET<<8 | command), Flags: netlink.Request | flags},
		Data:   append([]byte{unix.AF_INET, unix.NFNETLINK_V0, 0, 0}, data...),
	})
}
