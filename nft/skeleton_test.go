package nft_test

import (
	"os"
	"path/filepath"
	"testing"

	"onerule/nft"
	"onerule/test/netns"
)

func TestSkeletonIsAcceptedByNft(t *testing.T) {
	ns := netns.New(t, "node")
	for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
		s := nft.NewSkeleton(nft.Config{Family: family, MasqueradeBit: 14, Detector: nft.DetectCIDR})
		file := filepath.Join(t.TempDir(), "skeleton.nft")
		if err := os.WriteFile(file, []byte(s.Text()), 0o600); err != nil {
			t.Fatal(err)
		}
		ns.Run(t, "nft", "-f", file)
		t.Log(ns.Run(t, "nft", "list", "ruleset"))
	}
}
