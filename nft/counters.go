package nft

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

func (k *inKernel) readCounters(d *dump, family Family) error {
	return eachCounter(d, family, func(name string, packets uint64) { k.counters[name] = packets })
}

// Counters gives what the named counters of our table have counted: packets, which are
// first packets of connections. A table that is not there has none.
func Counters(family Family) (map[string]uint64, error) {
	d, err := openDump()
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.close() }()
	list := map[string]uint64{}
	if err := eachCounter(d, family, func(name string, packets uint64) { list[name] = packets }); err != nil {
		return nil, fmt.Errorf("read the counters of %s %s: %w", family, TableName, err)
	}
	return list, nil
}

func eachCounter(d *dump, family Family, f func(name string, packets uint64)) error {
	request, err := tableRequest(family)
	if err != nil {
		return err
	}
	return d.run(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETOBJ, request, func(body []byte) error {
		var table, name string
		var packets uint64
		err := eachAttr(body[4:], func(kind uint16, v []byte) error {
			switch kind {
			case unix.NFTA_OBJ_TABLE:
				table = goString(v)
			case unix.NFTA_OBJ_NAME:
				name = goString(v)
			case unix.NFTA_OBJ_DATA:
				return eachAttr(v, func(kind uint16, n []byte) error {
					if kind == unix.NFTA_COUNTER_PACKETS && len(n) == 8 {
						packets = binary.BigEndian.Uint64(n)
					}
					return nil
				})
			}
			return nil
		})
		if err == nil && table == TableName {
			f(name, packets)
		}
		return err
	})
}
