// SPDX-License-Identifier: Apache-2.0

package indexsrv

import (
	"bufio"
	"errors"
	"fmt"
	"slices"

	"github.com/valyala/fasthttp"

	"kindex/internal/lookup"
	"kindex/shard"
)

// maxDumps bounds the dumps under way: each holds one stream's content at a time.
const maxDumps = 4

// selection is what a dump or a digest is asked about.
type selection struct {
	models []modelSelection
}

// modelSelection is one model's workers, in the order of registration.
type modelSelection struct {
	model   *model
	workers []*worker
}

// selectArgs is selectWorkers of the query arguments model_name, routing_group,
// tenant_id and instance_id; each left out means all.
func (h *Host) selectArgs(args *fasthttp.Args) (selection, error) {
	arg := func(name string) string { return string(args.Peek(name)) }
	return h.selectWorkers(lookup.Filter{Model: arg("model_name"), Group: arg("routing_group"), Tenant: arg("tenant_id")}, arg("instance_id"))
}

// selectWorkers returns the workers that f chooses and that have that instance id;
// "": any.
func (h *Host) selectWorkers(f lookup.Filter, instance string) (selection, error) {
	all := h.reg.workers(chosen(f))
	if len(all) == 0 && f.Model != "" {
		return selection{}, refuse(ErrNotFound, "model_name: no worker is registered for model %q", f.Model)
	}
	var sel selection
	for _, w := range all {
		if instance != "" && w.id.text != instance {
			continue
		}
		i := slices.IndexFunc(sel.models, func(m modelSelection) bool { return m.model.name == w.model.name })
		if i < 0 {
			i = len(sel.models)
			sel.models = append(sel.models, modelSelection{model: w.model})
		}
		sel.models[i].workers = append(sel.models[i].workers, w)
	}
	if len(sel.models) == 0 && instance != "" {
		return sel, refuse(ErrNotFound, "instance_id: %q is not registered", instance)
	}
	return sel, nil
}

func (h *Host) serveDump(ctx *fasthttp.RequestCtx, _ *queryScratch) {
	args := ctx.QueryArgs()
	lines := false
	switch format := string(args.Peek("format")); format {
	case "", "json":
	case "ndjson":
		lines = true
	default:
		refuseHTTP(ctx, fasthttp.StatusBadRequest, "format: must be json or ndjson")
		return
	}
	sel, err := h.selectArgs(args)
	if err != nil {
		refuseErr(ctx, err)
		return
	}
	ctx.SetContentType(contentJSON)
	if lines {
		ctx.SetContentType("application/x-ndjson")
	}
	if ctx.IsHead() {
		return
	}
	end, err := h.beginDump()
	if err != nil {
		refuseErr(ctx, err)
		return
	}
	ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
		defer end()
		if err := h.dump(w, &sel, lines); err != nil {
			h.log.Info("dump cut short", "error", err) // the client went away
		}
	})
}

// beginDump takes a place among the dumps under way, until end is called.
//
// Errors: ErrUnavailable.
func (h *Host) beginDump() (end func(), err error) {
	select {
	case h.dumps <- struct{}{}:
		return func() { <-h.dumps }, nil
	default:
		return nil, refuse(ErrUnavailable, "busy: %d dumps are under way, try again", maxDumps)
	}
}

// dump writes the content of sel.
func (h *Host) dump(w *bufio.Writer, sel *selection, lines bool) error {
	d := &dumpWriter{w: w, lines: lines}
	head := func(format string, args ...any) error {
		_, err := fmt.Fprintf(w, format, args...)
		return err
	}
	if !lines {
		if err := head("{"); err != nil {
			return err
		}
	}
	for i := range sel.models {
		m := &sel.models[i]
		d.label, d.first = lookup.AppendJSONString(nil, m.model.name.String()), true
		if !lines {
			comma := ","
			if i == 0 {
				comma = ""
			}
			if err := head(`%s%s:{"block_size":%d,"events":[`, comma, d.label, m.model.blockSize); err != nil {
				return err
			}
		}
		cursors, err := h.dumpModel(d, m)
		if err != nil {
			return err
		}
		if !lines {
			if err := head(`],"streams":{%s}}`, cursors); err != nil {
				return err
			}
		}
	}
	if !lines {
		if err := head("}\n"); err != nil {
			return err
		}
	}
	return w.Flush()
}

// dumpModel writes the events of all streams of m, and returns the members of
// the object that has their cursors.
func (h *Host) dumpModel(d *dumpWriter, m *modelSelection) ([]byte, error) {
	var cursors []byte
	for _, wk := range m.workers {
		var byRank []byte
		for _, r := range *wk.ranks.Load() {
			s, err := r.snapshot(h.idx)
			if errors.Is(err, shard.ErrUnknownHolder) {
				continue // unregistered meanwhile
			}
			if err != nil {
				return nil, err
			}
			if len(byRank) > 0 {
				byRank = append(byRank, ',')
			}
			at := len(byRank)
			byRank = append(append(byRank, r.key...), ':')
			byRank = appendCursor(byRank, &s.status)
			if d.lines {
				if _, err := fmt.Fprintf(d.w, "{\"model\":%s,\"block_size\":%d,\"streams\":{%s:{%s}}}\n",
					d.label, m.model.blockSize, wk.key, byRank[at:]); err != nil {
					return nil, err
				}
			}
			if err := d.stream(r, &s); err != nil {
				return nil, err
			}
		}
		if len(byRank) == 0 {
			continue
		}
		if len(cursors) > 0 {
			cursors = append(cursors, ',')
		}
		cursors = append(append(append(cursors, wk.key...), ":{"...), byRank...)
		cursors = append(cursors, '}')
	}
	return cursors, nil
}

func (h *Host) serveDigest(ctx *fasthttp.RequestCtx, _ *queryScratch) {
	sel, err := h.selectArgs(ctx.QueryArgs())
	if err != nil {
		refuseErr(ctx, err)
		return
	}
	out := map[string]map[string]map[string]string{}
	for i := range sel.models {
		m := &sel.models[i]
		byInstance := map[string]map[string]string{}
		for _, w := range m.workers {
			byRank := map[string]string{}
			for _, r := range *w.ranks.Load() {
				if digest, err := r.digest(h.idx); err == nil {
					byRank[fmt.Sprint(r.number)] = fmt.Sprintf("%016x", digest)
				}
			}
			if len(byRank) > 0 {
				byInstance[w.id.text] = byRank
			}
		}
		out[m.model.name.String()] = byInstance
	}
	replyValue(ctx, fasthttp.StatusOK, out)
}

// digest returns the digest of r's content between two batches.
func (r *rank) digest(idx *Writer) (uint64, error) {
	s, err := r.snapshot(idx)
	if err != nil {
		return 0, err
	}
	return s.content.Digest(), nil
}

// ServeContent answers a GET for what this host holds and whom it follows, for a program
// that has a host within it and a server of its own: path is /workers, /dump or /digest,
// as the host's own contract has them. It reports whether path is one of them.
//
// Users must have checked who asks.
func (h *Host) ServeContent(ctx *fasthttp.RequestCtx, path string) bool {
	switch path {
	case "/workers":
		h.serveWorkers(ctx, nil)
	case "/dump":
		h.serveDump(ctx, nil)
	case "/digest":
		h.serveDigest(ctx, nil)
	default:
		return false
	}
	return true
}
