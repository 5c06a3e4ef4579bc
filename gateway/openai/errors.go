// SPDX-License-Identifier: Apache-2.0

// Before: whoever refuses a request. After: the client.

package openai

import (
	"time"

	"kindex/internal/lookup"
)

// Types of errors, as OpenAI's API names them.
const (
	InvalidRequest = "invalid_request_error"
	ServerError    = "server_error"
	RateLimit      = "rate_limit_error"
	Unauthorized   = "authentication_error"
)

// Error is a refusal that a client can understand.
type Error struct {
	Status  int // of HTTP
	Type    string
	Code    string // for programs
	Param   string // the field that is wrong; "": none
	Message string // for people: one line

	RetryAfter time.Duration // whole seconds until asking again may help; 0: a second, where the status tells of a full server
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// AppendJSON appends the body of the answer.
func (e *Error) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"error":{"message":`...)
	dst = lookup.AppendJSONString(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = lookup.AppendJSONString(dst, e.Type)
	dst = append(dst, `,"param":`...)
	dst = appendOrNull(dst, e.Param)
	dst = append(dst, `,"code":`...)
	dst = appendOrNull(dst, e.Code)
	return append(dst, "}}"...)
}

func appendOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return lookup.AppendJSONString(dst, s)
}

// invalid refuses a body for one field.
func invalid(code, param, message string) *Error {
	return &Error{Status: 400, Type: InvalidRequest, Code: code, Param: param, Message: message}
}

// wrongType says what a field must be.
func wrongType(param, want string) *Error {
	return invalid("invalid_type", param, param+": must be "+want)
}

// Missing says that a field must be given.
func Missing(param string) *Error {
	return invalid("missing_required_parameter", param, "Missing required parameter: '"+param+"'.")
}

// NoModel says that nobody serves a model.
func NoModel(name string) *Error {
	return &Error{Status: 404, Type: InvalidRequest, Code: "model_not_found", Param: "model", Message: "The model `" + name + "` does not exist."}
}
