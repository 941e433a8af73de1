package plugin

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
)

// A key names one attachment of a container to a network.
type key struct{ network, container, ifName string }

func (k key) String() string { return k.network + "/" + k.container + "/" + k.ifName }

func (r request) key(network string) key { return key{network, r.container, r.ifName} }

// hostLink gives the name of the node's end: 15 bytes, the most that Linux takes.
// It follows from the key, so that DEL finds the link without any record.
func (k key) hostLink() string {
	return hostLinkPrefix + hex.EncodeToString(k.hash("link"))[:12]
}

const hostLinkPrefix = "one"

// mac derives a stable MAC of one end, locally administered and of one device.
func (k key) mac(end string) net.HardwareAddr {
	mac := net.HardwareAddr(k.hash("mac " + end)[:6])
	mac[0] = mac[0]&^1 | 2
	return mac
}

// hash mixes a purpose and the key. The parts hold no slash.
func (k key) hash(purpose string) []byte {
	sum := sha256.Sum256([]byte(purpose + "/" + k.String()))
	return sum[:]
}

// fileName gives a file name of the key within its network: container:interface,
// readable for people. Neither part holds a colon. Long identifiers are cut and
// told apart by a hash after a tilde, which no identifier holds.
func (k key) fileName() string {
	const longest = 190
	container := k.container
	if len(container) > longest {
		container = container[:longest] + "~" + hex.EncodeToString(k.hash("file"))[:16]
	}
	return container + ":" + k.ifName
}
