package core

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hermes-framework/hermes/core/cell"
	"github.com/hermes-framework/hermes/core/kernel"
	"github.com/hermes-framework/hermes/core/kernelhost"
	"github.com/hermes-framework/hermes/core/secfile"
	"github.com/hermes-framework/hermes/core/toolrpc"
)

// cellRecord says to which kernel host a cell with a chosen id was submitted, in StateDir/cells: the same id may come again when that host is gone, and
// then only its journal can tell whether the cell ran.
type cellRecord struct {
	ID          string          `json:"id"`
	Session     string          `json:"session"`
	Environment string          `json:"environment"`
	Interpreter string          `json:"interpreter"`
	Language    cell.Language   `json:"language"`
	Digest      []byte          `json:"digest"`
	Host        kernelhost.Info `json:"host"`
}

const (
	cellRecordAge = 7 * 24 * time.Hour
	mostChosen    = 10_000 // ids of cells without a session that an engine remembers
	mostClaims    = 3
)

// errAskAgain means that a cell with a chosen id may be somewhere else by now.
var errAskAgain = errors.New("another program has submitted this cell meanwhile")

func (s store) cell(id string) (path, lock string, err error) {
	sum := sha256.Sum256([]byte(id))
	path, err = s.path("cells", fmt.Sprintf("%x", sum[:16]))
	return path, filepath.Join(filepath.Dir(path), fmt.Sprintf("%02x.lock", sum[0])), err
}

// loadCell is load for the record of a cell.
func loadCell(path, id string) (cellRecord, bool, error) {
	var rec cellRecord
	known, err := load(path, &rec)
	if err == nil && known && (rec.ID != id || rec.Host.Incarnation == "") {
		err = damaged(path, fmt.Errorf("it is not the record of cell %s", id))
	}
	if errors.Is(err, errDamaged) {
		err = withHint(err, "remove that file: then nothing tells whether the cell has run before")
	}
	return rec, known, err
}

// pruneCells removes the records of cells that nobody will ask for.
func (s store) pruneCells() {
	for _, path := range s.records("cells") {
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) > cellRecordAge {
			_ = os.Remove(path) // another time, then
		}
	}
}

// prior is where a cell with a chosen id was submitted before.
type prior struct {
	host   *kernel.Host
	gone   bool // for certain: nobody is connected to
	kernel cell.Kernel
	digest []byte
	done   func()
}

// prior finds out where the cell was submitted before; nil: nowhere.
func (r *run) prior(ctx context.Context) (*prior, error) {
	e := r.engine
	if r.req.Session == "" {
		return e.chosen.find(r.req.ID), nil
	}
	path, _, err := e.store.cell(r.req.ID)
	if err != nil {
		return nil, err
	}
	rec, known, err := loadCell(path, r.req.ID)
	if err != nil || !known {
		return nil, err
	}
	env, err := e.environment(ctx, rec.Environment)
	if err != nil {
		return nil, err
	}
	p := &prior{digest: rec.Digest, done: func() {}, kernel: cell.Kernel{
		Session: rec.Session, Environment: rec.Environment, Language: rec.Language, Host: rec.Host.Hostname, Incarnation: rec.Host.Incarnation,
	}}
	for _, h := range env.live() {
		if h.Identity().Incarnation == rec.Host.Incarnation {
			p.host = h
			return p, nil
		}
	}
	place := env.place
	place.Interpreter = rec.Interpreter
	up := &kernelhost.Host{Place: &place, Info: rec.Host, Token: e.store.tokenOf(rec.Host.Incarnation, nil)}
	p.host, p.gone = converse(up, true), up.Token == nil
	p.done = func() { p.host.Close(ctx) }
	return p, nil
}

// ask follows the cell there to its end. It says whether the cell certainly has not started there, and cannot unless the host lives.
func (p *prior) ask(ctx context.Context, j kernel.Joining, sink func(cell.Frame)) (end cell.Fields, never bool, err error) {
	if p.gone {
		end, err = p.host.Recover(ctx, j, sink)
	} else {
		end, err = p.host.Join(ctx, j, toolrpc.None{}, sink)
	}
	waited := hostIsGone(end) && end.Text("outcome") == string(cell.OutcomeRefused) && end.Text("reason") == reasonNoKernel
	return end, errors.Is(err, kernel.ErrNoCell) || err == nil && waited, err
}

func (r *run) joining() kernel.Joining {
	return kernel.Joining{ID: r.req.ID, Digest: r.submission().Digest(), Stop: true}
}

func (r *run) submission() kernel.Submission {
	return kernel.Submission{ID: r.req.ID, Session: r.req.Session, Language: r.req.Language, Code: r.req.Code, Timeout: r.req.Timeout}
}

// before is the result of the cell if it was submitted before; known is false if it certainly has not run, so that it may run now.
func (r *run) before(ctx context.Context) (res cell.Result, known bool, err error) {
	p, err := r.prior(ctx)
	if err != nil || p == nil {
		return res, false, err
	}
	defer p.done()
	end, never, err := p.ask(ctx, r.joining(), r.out.Take)
	if never {
		return res, false, nil
	}
	res = cell.Result{Cell: cell.Cell{ID: r.req.ID}, Kernel: p.kernel}
	switch {
	case err != nil && string(p.digest) != string(r.submission().Digest()):
		res.Cell.Outcome, res.Cell.Reason = cell.OutcomeRefused, "conflict: another cell has this id"
	case err != nil:
		res.Cell.Outcome, res.Cell.Reason = cell.OutcomeUnknown, err.Error()
	default:
		fold(&res.Cell, end)
		res.Kernel.ID = end.Text("kernel")
		if !hostIsGone(end) {
			if listed, err := p.host.Cells(context.WithoutCancel(ctx), r.req.ID); err == nil && len(listed) > 0 {
				res.Kernel.ID = listed[0].Kernel
			}
			r.fetchTails(ctx, p.host, end)
		}
		res.Kernel.Cells = int(end.Int("cells"))
		res.Kernel.Reused = res.Kernel.Cells > 1
	}
	r.out.Finish(&res.Cell)
	return res, true, nil
}

// claim writes down, before the cell is submitted, that it is to run on a kernel host. It fails with errAskAgain if the cell may be elsewhere.
func (r *run) claim(ctx context.Context, env *environment, h *kernel.Host) error {
	if !r.chosen {
		return nil
	}
	if r.req.Session != "" {
		_, lock, err := r.engine.store.cell(r.req.ID)
		if err != nil {
			return err
		}
		unlock, err := secfile.Lock(ctx, lock)
		if err != nil {
			return err
		}
		defer unlock()
	}
	p, err := r.prior(ctx)
	if err != nil {
		return err
	}
	if p != nil {
		defer p.done()
		if p.kernel.Incarnation == h.Identity().Incarnation {
			return nil
		}
		if !r.neverThere(ctx, p) {
			return errAskAgain
		}
	}
	return r.note(env, h)
}

// neverThere sees to it that the cell does not start where it was submitted before, and says whether that is certain.
func (r *run) neverThere(ctx context.Context, p *prior) bool {
	if !p.gone {
		revoked, err := p.host.Revoke(ctx, r.req.ID)
		if err == nil || !kernel.IsGone(err) {
			return revoked && err == nil
		}
	}
	_, never, _ := (&prior{host: p.host, gone: true}).ask(ctx, r.joining(), func(cell.Frame) {})
	return never
}

// note writes the record of the cell.
func (r *run) note(env *environment, h *kernel.Host) error {
	e := r.engine
	digest := r.submission().Digest()
	if r.req.Session == "" {
		e.chosen.add(r.req.ID, &prior{host: h, digest: digest, done: func() {}, kernel: r.kernel(env, kernel.Kernel{Host: h})})
		return nil
	}
	for _, path := range e.store.records("hosts") {
		var host hostRecord
		if known, err := load(path, &host); err != nil || !known || host.Host.Incarnation != h.Identity().Incarnation {
			continue
		}
		path, _, err := e.store.cell(r.req.ID)
		if err != nil {
			return err
		}
		e.store.pruneCells()
		return save(path, cellRecord{
			ID: r.req.ID, Session: r.req.Session, Environment: host.Environment, Interpreter: host.Interpreter, Language: r.req.Language, Digest: digest, Host: host.Host,
		})
	}
	return errAskAgain // the host is gone, and its record, too
}

// chosenIDs remembers where an engine submitted the cells without a session whose ids were chosen; the oldest are forgotten. Engine.mu guards it.
type chosenIDs struct {
	engine *Engine
	hosts  map[string]*prior
	order  []string
}

func (c *chosenIDs) find(id string) *prior {
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	return c.hosts[id]
}

func (c *chosenIDs) add(id string, p *prior) {
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	if c.hosts == nil {
		c.hosts = map[string]*prior{}
	}
	if c.hosts[id] == nil {
		c.order = append(c.order, id)
	}
	c.hosts[id] = p
	for len(c.order) > mostChosen {
		delete(c.hosts, c.order[0])
		c.order = c.order[1:]
	}
}

// recordedCell is the result of a cell that a record of StateDir/cells tells of, but no host and no journal that could be asked.
func (e *Engine) recordedCell(id string) (cell.Result, bool) {
	path, _, err := e.store.cell(id)
	if err != nil {
		return cell.Result{}, false
	}
	rec, known, err := loadCell(path, id)
	if err != nil || !known {
		return cell.Result{}, false
	}
	k := cell.Kernel{Session: rec.Session, Environment: rec.Environment, Language: rec.Language, Host: rec.Host.Hostname, Incarnation: rec.Host.Incarnation}
	why := "its kernel host is gone, and no journal tells what became of the cell"
	return cell.Result{Cell: cell.Cell{ID: id, Outcome: cell.OutcomeUnknown, Reason: why}, Kernel: k}, true
}
