// SPDX-License-Identifier: Apache-2.0

// Before and after: as in parse.go, of which these are the prompts.

package openai

// forms is what a prompt may be.
const forms = "a string, a list of strings, a list of token ids or a list of lists of token ids"

// texts reads a prompt in any of the forms that engines take.
func (p *parser) texts(name string) error {
	p.right(name)
	if null, err := p.null(); null || err != nil {
		return err
	}
	switch p.s.Space() {
	case '"':
		t, ok, err := p.text()
		if err != nil {
			return err
		}
		p.prompt, p.Form, p.Prompts, p.Text = true, Text, 1, t
		if !ok {
			p.Form = NoPrompt
		}
		return nil
	case '[':
		p.prompt = true
		return p.list(name)
	}
	return p.wrong(name, forms)
}

// tokens reads token ids, or lists of them.
func (p *parser) tokens(name string) error {
	p.right(name)
	if null, err := p.null(); null || err != nil {
		return err
	}
	if p.s.Space() != '[' {
		return p.wrong(name, "a list of token ids")
	}
	p.ids = true
	return p.list(name)
}

// list reads a list that is a prompt of token ids, or has prompts.
func (p *parser) list(name string) error {
	from := p.s.Offset()
	p.Form, p.Prompts, p.Text, p.Tokens = NoPrompt, 0, nil, p.Tokens[:0]
	p.s.Take('[')
	switch c := p.s.Space(); {
	case '0' <= c && c <= '9':
		p.s.Seek(from)
		return p.idList(name)
	case c != '"' && c != '[':
		p.s.Seek(from)
		return p.skip()
	}
	for first := true; ; first = false {
		done, err := p.s.Next(first, ']')
		if err != nil {
			return broken(err)
		}
		if done {
			return nil
		}
		if err := p.element(name); err != nil {
			return err
		}
		p.Prompts++
	}
}

// element reads one of several prompts: the first is kept.
func (p *parser) element(name string) error {
	c := p.s.Space()
	switch {
	case p.Prompts > 0:
		if err := p.s.Skip(maxDepth - 2); err != nil {
			return broken(err)
		}
		return nil
	case c == '"':
		t, ok, err := p.text()
		if ok {
			p.Form, p.Text = Text, t
		}
		return err
	case c == '[':
		n := p.Prompts
		err := p.idList(name)
		p.Prompts = n
		return err
	}
	return p.skip()
}

// idList reads a list of token ids. One that has something else is left to the engine.
func (p *parser) idList(name string) error {
	from := p.s.Offset()
	tokens, err := p.s.AppendTokens(name, p.Tokens[:0])
	p.Tokens, p.Prompts = tokens, 1
	if err == nil {
		if len(tokens) > 0 {
			p.Form = IDs
		}
		return nil
	}
	p.Form, p.Tokens = NoPrompt, p.Tokens[:0]
	p.s.Seek(from)
	return p.skip()
}

// messages reads a chat: where each message stands, and whether it has more than text.
func (p *parser) messages() error {
	p.right("messages")
	if null, err := p.null(); null || err != nil {
		return err
	}
	if p.s.Space() != '[' {
		return p.wrong("messages", "a list of messages")
	}
	from := p.s.Offset()
	p.s.Take('[')
	p.turns = p.turns[:0]
	p.Multimodal = false
	for first := true; ; first = false {
		done, err := p.s.Next(first, ']')
		if err != nil {
			return broken(err)
		}
		if done {
			break
		}
		p.s.Space()
		at, item := p.s.Offset(), false
		if err := p.members(func(key []byte) error {
			if string(key) != "content" {
				return p.s.Skip(maxDepth - 3)
			}
			has, err := p.content()
			item = item || has
			return err
		}); err != nil {
			return broken(err)
		}
		p.turns = append(p.turns, Turn{at, p.s.Offset(), item})
		p.Multimodal = p.Multimodal || item
	}
	p.Messages = p.Body[from:p.s.Offset()]
	p.Form, p.Prompts = Messages, 1
	if p.ids {
		p.Form = IDs // given beside the messages, and they win
	}
	return nil
}

// content reads what a message says, and reports whether that is more than text.
func (p *parser) content() (items bool, err error) {
	if p.s.Space() != '[' {
		return false, p.s.Skip(maxDepth - 3)
	}
	p.s.Take('[')
	for first := true; ; first = false {
		done, err := p.s.Next(first, ']')
		if done || err != nil {
			return items, err
		}
		if p.s.Space() == '"' { // a text as such
			if err := p.s.Skip(maxDepth - 4); err != nil {
				return items, err
			}
			continue
		}
		plain := false
		err = p.members(func(key []byte) error {
			if string(key) == "type" && p.s.Space() == '"' {
				kind, err := p.s.RawText()
				plain = plainPart(kind)
				return err
			}
			return p.s.Skip(maxDepth - 5)
		})
		if err != nil {
			return items, err
		}
		items = items || !plain
	}
}

// plainPart reports whether a part of this type is text and nothing else. Of what is
// not known the rest of the prompt's tokens are not known either.
func plainPart(kind []byte) bool {
	switch string(kind) {
	case "text", "input_text", "output_text", "refusal", "thinking", "reasoning":
		return true
	}
	return false
}
