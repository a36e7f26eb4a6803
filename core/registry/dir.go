package registry

import (
	"os"

	"github.com/hermes-framework/hermes/core/secfile"
	"github.com/hermes-framework/hermes/internal/launch"
)

// Dir is a directory that one program has to itself. It is locked while the program lives, so that the next one can tell it from what
// a dead one has left, which a Registry with Config.RuntimeDir in it removes.
type Dir = launch.Dir

// lastTemp is the temporary directory where the environment names none that works.
const lastTemp = "/tmp"

// MakeDir makes a Dir in base, which is made (0700) if need be; empty: in the system's temporary directory, or in /tmp if that is of no use. The caller must call Remove.
func MakeDir(base string) (*Dir, error) {
	if base != "" {
		if err := secfile.MakeDir(base); err != nil {
			return nil, err
		}
		dir, err := launch.MakeDir(base, launch.OwnerPrefix)
		return dir, secfile.Explain(err)
	}
	dir, err := launch.MakeDir(os.TempDir(), launch.OwnerPrefix)
	if err != nil && os.TempDir() != lastTemp {
		dir, err = launch.MakeDir(lastTemp, launch.OwnerPrefix) // TMPDIR is of no use
	}
	return dir, secfile.Explain(err)
}
