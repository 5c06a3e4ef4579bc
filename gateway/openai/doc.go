// SPDX-License-Identifier: Apache-2.0

// Package openai reads what a gateway must know of the requests and answers that pass
// through it, of OpenAI's API and of the engines' additions to it, without decoding
// them: where a request goes depends on its model, its prompt and a few flags; what an
// answer cost stands in its usage.
//
// A request that the package cannot make sense of in part is passed on all the same:
// engines know fields and forms that a gateway does not. Refused is only what no
// engine can take: what is not JSON, and what names no model where one must be named.
package openai
