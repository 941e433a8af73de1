package random_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"onerule/test/random"
)

const (
	// soakVariable makes the test with real packets a long one, and lets the long tests
	// say how far they are.
	soakVariable = "ONERULE_SOAK"
	// roundVariable names a round to be run alone.
	roundVariable = "ONERULE_ROUND"
)

func soaking() bool { return os.Getenv(soakVariable) == "1" }

// A run is the rounds of a test that follow from one seed.
type run struct {
	seed   uint64
	rounds int
	only   int // the round to be run alone, -1: all
}

// begins gives the run of a test of so many rounds.
func begins(t *testing.T, rounds int) run {
	t.Helper()
	r := run{seed: seed(t), rounds: rounds, only: -1}
	text := os.Getenv(roundVariable)
	if text == "" {
		return r
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n >= rounds {
		t.Fatalf("%s=%q is no round from 0 to %d", roundVariable, text, rounds-1)
	}
	r.only = n
	return r
}

func (r run) whole() bool { return r.only < 0 }

// has says whether a round is in the run.
func (r run) has(round int) bool { return r.whole() || r.only == round }

// again says how a round is repeated alone.
func (r run) again(t *testing.T, round int) string {
	first := ""
	name, _, _ := strings.Cut(t.Name(), "/")
	if soaking() {
		first = soakVariable + "=1 "
	}
	return fmt.Sprintf("again: %s%s=%d %s=%d make test PKG=./test/random TESTFLAGS='-v -run ^%s$'",
		first, random.SeedVariable, r.seed, roundVariable, round, name)
}
