package kernel

import (
	"context"
	"errors"

	"github.com/hermes-framework/hermes/core/cell"
)

// settle finds out about a cell that may have been sent and could not be followed, although its host is there: one that has not started is revoked,
// so that it never will; another one is followed once more. why is what went wrong.
func (r *cellRun) settle(ctx context.Context, why error) (cell.Fields, error) {
	cancelled := ctx.Err() != nil
	bounded, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), GiveUpAfter, errors.New("the cell could not be revoked in time"))
	defer cancel()
	answer, err := r.kernel.Host.request(bounded, cell.Fields{"t": "revoke", "cell": r.sub.ID})
	switch {
	case err != nil && IsGone(err):
		return r.recover(ctx, err)
	case err != nil:
		return nil, why
	case answer.Text("state") != "revoked":
		if !cancelled {
			bounded = ctx
		}
		return r.follow(bounded)
	}
	reason := "no_kernel"
	if cancelled {
		reason = "cancelled"
	}
	return cell.Fields{"outcome": string(cell.OutcomeRefused), "reason": reason, "msg": "it could not be followed, and was revoked before it started", "kernel_alive": true}, nil
}
