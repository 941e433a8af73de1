package hostport_test

import (
	"os"
	"regexp"
	"testing"
)

// withoutSeals leaves out the parts of names that are digests.
func withoutSeals(listing string) string {
	return regexp.MustCompile(`chain (rules|skeleton)-[0-9a-f]+`).ReplaceAllString(listing, "chain $1-DIGEST")
}

// golden gives what nft should list the tables as.
func golden(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("testdata/tables.nft")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
