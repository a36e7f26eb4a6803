// Package mustrun turns the skips of tests into failures where everything is there.
package mustrun

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// test is a *testing.T, or what testscript has for one.
type test interface {
	Fatal(args ...any)
	Skip(args ...any)
}

// Skip skips the test, because the service that it needs is missing; it fails it if the environment's HERMES_TEST_MUST_RUN, a list with commas,
// names the service. The sentence says what is missing.
func Skip(t test, service, format string, args ...any) {
	said := service + ": " + fmt.Sprintf(format, args...)
	if slices.Contains(strings.Split(os.Getenv("HERMES_TEST_MUST_RUN"), ","), service) {
		t.Fatal(said + " (HERMES_TEST_MUST_RUN allows no skip)")
	}
	t.Skip(said)
}
