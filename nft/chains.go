package nft

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

func (k *inKernel) readChains(d *dump, family Family) error {
	request, err := tableRequest(family)
	if err != nil {
		return err
	}
	const kind = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN
	if err := d.run(kind, request, k.takeChain); err != nil {
		return err
	}
	names := []string{}
	for _, c := range NewSkeleton(Config{Family: family}).Chains {
		names = append(names, c.Name)
	}
	for name := range k.sets {
		if _, ok := countOf(name); ok {
			names = append(names, name)
		}
	}
	for name := range k.rules {
		names = append(names, name)
	}
	names = append(names, sealOf(k.digest))
	for _, name := range names {
		attrs, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_CHAIN_NAME, Data: cString(name)}})
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		err = d.ask(kind, append(slices.Clone(request), attrs...), k.takeChain)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("chain %s: %w", name, err)
		}
	}
	return nil
}

func (k *inKernel) takeChain(body []byte) error {
	var table, name string
	var c kernelChain
	err := eachAttr(body[4:], func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			table = goString(v)
		case unix.NFTA_CHAIN_NAME:
			name = goString(v)
		case unix.NFTA_CHAIN_TYPE:
			c.kind = goString(v)
		case unix.NFTA_CHAIN_POLICY:
			c.policy = be32(v)
		case unix.NFTA_CHAIN_HOOK:
			c.base = true
			return c.takeHook(v)
		}
		return nil
	})
	if table == TableName {
		k.chains[name] = c
	}
	return err
}

func (c *kernelChain) takeHook(hook []byte) error {
	return eachAttr(hook, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_HOOK_HOOKNUM:
			c.hook = be32(v)
		case unix.NFTA_HOOK_PRIORITY:
			c.priority = int32(be32(v))
		}
		return nil
	})
}
