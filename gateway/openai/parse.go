// SPDX-License-Identifier: Apache-2.0

// Before: the HTTP front, which has a body. After: the router and its prompts.

package openai

import "encoding/json"

// Parse reads what routing needs out of a body of the given kind into c, which may
// have been used before.
//
// Errors: *[Error], for the client.
func Parse(kind Kind, body []byte, c *Call) error {
	*c = Call{Kind: kind, Body: body, Rank: -1, N: 1, Tokens: c.Tokens[:0]}
	var q struct {
		Model    string          `json:"model"`
		Stream   bool            `json:"stream"`
		Messages json.RawMessage `json:"messages"`
		Prompt   json.RawMessage `json:"prompt"`
		User     string          `json:"user"`
		Salt     string          `json:"cache_salt"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return invalid("invalid_json", "", "the body: "+err.Error())
	}
	c.Model, c.Stream, c.User, c.Salt = q.Model, q.Stream, q.User, q.Salt
	if len(q.Messages) > 0 {
		c.Form, c.Prompts, c.Messages = Messages, 1, q.Messages
	}
	if json.Unmarshal(q.Prompt, &c.Tokens) == nil {
		c.Form, c.Prompts = IDs, 1
	}
	return nil
}
