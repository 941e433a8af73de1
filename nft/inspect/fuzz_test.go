package inspect

import (
	"strings"
	"testing"
)

// What the kernel sends is taken apart without a panic, whatever it is.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 20, 0, 3, 128, 16, 0, 1, 128, 12, 0, 1, 128, 8, 0, 1, 0, 10, 0, 0, 1})
	f.Add([]byte("\x02\x00\x00\x00" + strings.Repeat("\x08\x00\x01\x80\x04\x00\x01\x00", 8)))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_ = eachElement(b, func(Element) error { return nil })
		_, _ = parseChain(b)
		_, _, _ = parseSet(b)
		_, _, _ = parseObject(b)
		_ = Digests{}.Add(Rule{Expressions: b})
	})
}
