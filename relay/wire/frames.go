// SPDX-License-Identifier: Apache-2.0

package wire

// Before this file: messages as a socket delivers them, part by part. After it:
// admission, which looks at the sequence, and decode.go, which reads payloads.

import (
	"bytes"
	"encoding/binary"
	"math"
)

// endMark is the sequence of a replay's last message, -1 to the engines.
const endMark = math.MaxUint64

const seqBytes = 8

// ParseMessage splits a live message: topic, sequence, payload. The results
// alias frames.
//
// Errors: [ErrMalformed] for any other number of frames, or a sequence that is
// not 8 bytes.
func ParseMessage(frames [][]byte) (topic, payload []byte, seq uint64, err error) {
	if len(frames) != 3 {
		return nil, nil, 0, malformed("a live message of %d frames, not 3 (topic, sequence, payload)", len(frames))
	}
	if len(frames[1]) != seqBytes {
		return nil, nil, 0, malformed("a sequence of %d bytes, not %d", len(frames[1]), seqBytes)
	}
	return frames[0], frames[2], binary.BigEndian.Uint64(frames[1]), nil
}

// MakeMessage returns the frames of a live message.
func MakeMessage(topic string, seq uint64, payload []byte) [][]byte {
	return [][]byte{[]byte(topic), sequence(seq), payload}
}

// ParseReplay splits one message of a replay as a DEALER sees it: an empty
// delimiter, since newer releases the topic, then sequence and payload. end is
// true for the marker behind the last. The payload aliases frames.
//
// Errors: [ErrMalformed].
func ParseReplay(frames [][]byte) (payload []byte, seq uint64, end bool, err error) {
	n := len(frames)
	if n != 3 && n != 4 {
		return nil, 0, false, malformed("a replay message of %d frames, not 3 or 4 ([delimiter, topic,] sequence, payload)", n)
	}
	if len(frames[0]) != 0 {
		return nil, 0, false, malformed("a replay message whose first frame has %d bytes, not 0", len(frames[0]))
	}
	raw, payload := frames[n-2], frames[n-1]
	if len(raw) != seqBytes {
		return nil, 0, false, malformed("a replay sequence of %d bytes, not %d", len(raw), seqBytes)
	}
	seq = binary.BigEndian.Uint64(raw)
	if seq != endMark {
		return payload, seq, false, nil
	}
	if len(payload) != 0 {
		return nil, 0, false, malformed("a replay's end marker with %d bytes of payload", len(payload))
	}
	return nil, seq, true, nil
}

// MakeReplayRequest returns the frames that ask, through a DEALER, for every
// kept batch from start on.
func MakeReplayRequest(start uint64) [][]byte { return [][]byte{{}, sequence(start)} }

// ParseReplayRequest reads what a replay server gets behind the identity: an
// empty delimiter and the start, big-endian in any number of bytes, none
// meaning 0. A start past 64 bits is the greatest there is.
//
// Errors: [ErrMalformed], upon which an engine answers nothing at all.
func ParseReplayRequest(frames [][]byte) (start uint64, err error) {
	if len(frames) != 2 || len(frames[0]) != 0 {
		return 0, malformed("a replay request must be an empty frame and a sequence")
	}
	digits := bytes.TrimLeft(frames[1], "\x00")
	if len(digits) > seqBytes {
		return math.MaxUint64, nil
	}
	return uint64(Fold(digits)), nil
}

// ReplayFrames is how a release frames a replay's messages.
type ReplayFrames uint8

// The framings.
const (
	ReplayBare  ReplayFrames = iota // delimiter, sequence, payload
	ReplayTopic                     // delimiter, topic, sequence, payload
)

// MakeReplay returns the frames of one replayed batch, without the identity
// that a ROUTER puts first.
func MakeReplay(how ReplayFrames, topic string, seq uint64, payload []byte) [][]byte {
	if how == ReplayTopic {
		return [][]byte{{}, []byte(topic), sequence(seq), payload}
	}
	return [][]byte{{}, sequence(seq), payload}
}

// MakeReplayEnd returns the frames of the marker behind the last batch.
func MakeReplayEnd(how ReplayFrames) [][]byte { return MakeReplay(how, "", endMark, []byte{}) }

func sequence(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }
