// SPDX-License-Identifier: Apache-2.0

package series

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"kindex/harness/mooncake"
	"kindex/harness/peers"
	"kindex/harness/trial"
)

// peerModes are what the peers' tool measures, too.
var peerModes = []string{"write", "mixed", "lookup", "contend", memoryMode}

// Ours is an arm of this program.
func Ours(name string, o mooncake.Options, stderr io.Writer) Arm {
	return Arm{Name: name, Measure: func(ctx context.Context, mode string) (Figures, json.RawMessage, trial.Ran, error) {
		o := o
		if o.Mode = mode; mode == memoryMode {
			o.Mode = "bare"
		}
		var raw json.RawMessage
		ran, err := trial.SelfInto(ctx, stderr, &raw, o.Args()...)
		if err != nil {
			return nil, nil, ran, err
		}
		r := &mooncake.Result{}
		if err := json.Unmarshal(raw, r); err != nil {
			return nil, nil, ran, err
		}
		if err := complete(mode, r); err != nil {
			return nil, nil, ran, err
		}
		return ourFigures(mode, r), raw, ran, nil
	}}
}

// complete refuses a trial that lacks what its mode measures.
func complete(mode string, r *mooncake.Result) error {
	ok := true
	switch mode {
	case "bare":
		ok = r.BareEvents != nil && r.BareMix != nil
	case "lookup":
		ok = r.Half != nil && r.Full != nil
	}
	if !ok {
		return fmt.Errorf("the trial's output lacks what mode %s measures", mode)
	}
	return nil
}

// Peer is an arm of the published indexes' tool.
func Peer(exe, indexer string, o mooncake.Options, stderr io.Writer) Arm {
	return Arm{Name: indexer, Only: peerModes, Measure: func(ctx context.Context, mode string) (Figures, json.RawMessage, trial.Ran, error) {
		q := peers.Question{Indexer: indexer, Mode: mode, Corpus: o.Corpus, Lanes: o.Lanes, LimitOps: o.LimitOps}
		if mode != "mixed" { // whose lookups are inline
			q.Queries = o.Queries
		}
		out, ran, err := peers.Ask(ctx, exe, q, stderr)
		if err != nil {
			return nil, nil, ran, err
		}
		raw, err := json.Marshal(out)
		return peerFigures(mode, out), raw, ran, err
	}}
}

// SustainPeer searches a peer's highest sustained rate as [mooncake.Sustain] does ours.
func SustainPeer(ctx context.Context, exe, indexer string, o mooncake.Options, maxForeign float64, p *trial.Progress, stderr io.Writer) (*mooncake.Sustainable, error) {
	first := o.WindowMS
	if first == 0 {
		first = 4_000
	}
	s, err := mooncake.Search(ctx, first, maxForeign, func(ctx context.Context, window int) (mooncake.Offer, error) {
		out, ran, err := peers.Ask(ctx, exe, peers.Question{Indexer: indexer, Mode: "replay", Corpus: o.Corpus, Lanes: o.Lanes, WindowMS: window, LimitOps: o.LimitOps}, stderr)
		if err != nil {
			return mooncake.Offer{}, err
		}
		r := out.Last()
		offer := mooncake.Offer{Offered: r.Offered, Achieved: r.Achieved, Issued: r.IssuedOverWindow, Foreign: ran.Foreign}
		p.Alwaysf("%s, %d ms: %.1f M block operations a second offered, %.3f of it achieved, issued within %.3f windows, %.2f foreign CPUs", indexer, window, offer.Offered/1e6, offer.Achieved/offer.Offered, offer.Issued, offer.Foreign)
		return offer, nil
	})
	if err == nil {
		s.Corpus, s.Arm = o.Corpus, indexer
	}
	return s, err
}
