package nft

import (
	"golang.org/x/sys/unix"

	netfilter "onerule/nft/dump"
)

// maxDumpTries bounds how often a listing that a commit fell into is begun again.
const maxDumpTries = 5

// dump is a netlink socket for listings of tables.
type dump struct{ conn *netfilter.Conn }

func openDump() (*dump, error) {
	conn, err := netfilter.Open()
	if err != nil {
		return nil, err
	}
	return &dump{conn}, nil
}

func (d *dump) close() error { return d.conn.Close() }

// run asks for a listing and calls f with the payload of each message, which is valid
// during the call only. The kernel does not say for every kind of listing that something
// changed meanwhile, so those who must know ask for generation.
func (d *dump) run(kind uint16, payload []byte, f func(payload []byte) error) error {
	return d.conn.Run(kind, payload, f)
}

// ask sends a request that is no listing, and calls f with the payload of each answer.
func (d *dump) ask(kind uint16, payload []byte, f func(payload []byte) error) error {
	return d.conn.Ask(kind, payload, f)
}

// generation gives the number of the last commit to any table.
func (d *dump) generation() (gen uint32, err error) {
	header := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}
	err = d.ask(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, header, func(body []byte) error {
		return eachAttr(body[4:], func(kind uint16, v []byte) error {
			if kind == unix.NFTA_GEN_ID {
				gen = be32(v)
			}
			return nil
		})
	})
	return gen, err
}

func eachAttr(b []byte, f func(kind uint16, value []byte) error) error {
	return netfilter.EachAttr(b, f)
}

func align4(n int) int { return netfilter.Align4(n) }
