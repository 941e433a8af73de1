package bpf

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/go-logr/logr/testr"

	"onerule/test/netns"
)

// What the verifier says of a program that it refuses is in one line shortly, and can be had
// in full, also of an error that holds the one of Open.
func TestTheVerifiersLogIsGiven(t *testing.T) {
	spec, err := loadHits()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range spec.Programs {
		p.Instructions = asm.Instructions{asm.Mov.Reg(asm.R3, asm.R1), asm.Return()} // without a result
	}
	err = netns.New(t, "node").Do(func() error {
		_, err := load(spec, Options{IPv6: true, Log: testr.New(t)})
		return err
	})
	if err == nil {
		t.Fatal("a program without a result is taken")
	}
	const said = "!read_ok"
	if line := err.Error(); !strings.Contains(line, said) || strings.Contains(line, "\n") {
		t.Errorf("want one line with %q: %q", said, line)
	}
	log := VerifierLog(fmt.Errorf("count connections: %w", err))
	for _, want := range []string{said, "r3 = r1", "exit"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q: %s", want, log)
		}
	}
}

func TestOtherErrorsHaveNoLogOfTheVerifier(t *testing.T) {
	for _, err := range []error{nil, ErrFull, neither([]failure{{"netfilter", ErrFull}, {"fexit", errNoRoom}})} {
		if log := VerifierLog(err); log != "" {
			t.Errorf("%v has %q", err, log)
		}
	}
	if got, want := neither([]failure{{"netfilter", ErrFull}, {"fexit", errNoRoom}}).Error(), "netfilter: the map is full; fexit: argument list too long"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
