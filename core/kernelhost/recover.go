package kernelhost

import (
	"context"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/plugin/sdk"
)

// maxRecovered is how long the answer may be: two streams of 1 MiB, a value, a traceback, in hexadecimal.
const maxRecovered = 16 << 20

// Recover asks the journal of a host that is gone what became of the cell with that id: the answer of the command recover in docs/protocol.md.
// An error says that nothing can tell: the host lives (sdk.ErrConflict), there is no journal (sdk.ErrNotFound), it is damaged, or processes of the
// cell may still run.
func (h *Host) Recover(ctx context.Context, id string) (cell.Fields, error) {
	if h.Info.Journal == "" {
		return nil, sdk.Errorf(sdk.CodeUnsupported, sdk.NotStarted, "%s: the kernel host kept no journal: a version of hermes started it that has none", h.Place.Label())
	}
	l := launcher{place: h.Place, interpreter: h.Info.Executable, mode: "recover", step: "ask the journal of the kernel host", most: maxRecovered}
	return l.run(ctx, cell.Fields{"journal": h.Info.Journal, "inc": h.Info.Incarnation, "cell": id})
}
