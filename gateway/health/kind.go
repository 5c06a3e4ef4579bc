// SPDX-License-Identifier: Apache-2.0

// Before: the transports, which know how a request ended. After: breaker.go.

package health

import (
	"net/http"

	"google.golang.org/grpc/codes"
)

// Kind is how a request ended, as far as its worker is concerned.
type Kind uint8

// The kinds. A fault counts against the worker; what is neutral counts neither way.
const (
	OK            Kind = iota // an answer, whole
	ClientError               // neutral: 4xx
	ClientGone                // neutral: nobody waits for the answer any more
	BackPressure              // neutral: 429, 503: the worker is full
	WorkerError               // fault: any other 5xx
	ConnectFailed             // fault: no connection
	Broken                    // fault: the answer was cut off, or is none
	Stalled                   // fault: nothing came in time
	numKinds
)

var kindNames = [numKinds]string{
	"ok", "client_error", "client_gone", "back_pressure", "worker_error", "connect_failed", "broken", "stalled",
}

// String returns the kind's name in logs and metrics.
func (k Kind) String() string { return kindNames[k] }

// Fault reports whether k counts against the worker.
func (k Kind) Fault() bool { return k >= WorkerError && k < numKinds }

// KindOf returns what a worker's HTTP status tells.
func KindOf(status int) Kind {
	switch {
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		return BackPressure
	case status >= http.StatusInternalServerError:
		return WorkerError
	case status >= http.StatusBadRequest:
		return ClientError
	}
	return OK
}

// KindOfCode returns what a worker's gRPC status tells. A worker that is not there and
// one that broke off are told apart by whether an answer had begun.
func KindOfCode(c codes.Code, began bool) Kind {
	switch c {
	case codes.OK:
		return OK
	case codes.Canceled:
		return ClientGone
	case codes.ResourceExhausted:
		return BackPressure
	case codes.DeadlineExceeded:
		return Stalled
	case codes.Unavailable:
		if began {
			return Broken
		}
		return ConnectFailed
	case codes.Unknown, codes.Internal, codes.DataLoss, codes.Aborted:
		return WorkerError
	default: // what was asked cannot be answered
		return ClientError
	}
}
