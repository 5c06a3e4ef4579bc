// SPDX-License-Identifier: Apache-2.0

// Before and after: as in parse.go, of which these are the members.

package openai

// member reads the value of one member, whose own text begins at from.
func (p *parser) member(key []byte, from int) (err error) {
	var n int
	var ok bool
	switch string(key) {
	case "model":
		if c := p.s.Space(); c != '"' && c != 'n' {
			return p.wrong("model", "a string")
		}
		p.right("model")
		p.Model = ""
		return p.name(&p.Model, p.was[0])
	case "user":
		return p.name(&p.User, p.was[1])
	case "cache_salt":
		p.Salt = ""
		return p.name(&p.Salt, p.was[2])
	case "lora_path", "lora_name":
		return p.adapter()
	case "stream":
		p.Stream, err = p.flag()
	case "stream_options":
		return p.streamOptions()
	case "n":
		if n, ok, err = p.count(); ok && n > 0 {
			p.N = n
		}
	case "max_tokens", "max_completion_tokens":
		if n, ok, err = p.count(); ok {
			p.MaxTokens = n
		}
	case "sampling_params":
		if p.Kind == Generate {
			return p.sampling()
		}
		return p.skip()
	case "data_parallel_rank":
		return p.rank()
	default:
		return p.promptMember(key, from)
	}
	return err
}

// promptMember reads a member that is a prompt or belongs to one.
func (p *parser) promptMember(key []byte, from int) error {
	var given bool
	var err error
	switch string(key) {
	case "messages":
		if p.Kind == Chat || p.Kind == Embedding || p.Kind == Tokenize {
			return p.messages()
		}
		return p.skip()
	case "prompt":
		if p.Kind == Completion || p.Kind == Tokenize {
			return p.texts("prompt")
		}
		return p.option(key, from)
	case "input":
		if p.Kind == Embedding {
			return p.texts("input")
		}
		return p.option(key, from)
	case "text":
		if p.Kind == Generate {
			return p.texts("text")
		}
		return p.option(key, from)
	case "input_ids":
		if p.Kind == Generate || p.Kind == Chat {
			return p.tokens("input_ids")
		}
		return p.option(key, from)
	case "tokens":
		if p.Kind == Detokenize {
			return p.tokens("tokens")
		}
		return p.option(key, from)
	case "prompt_embeds", "input_embeds":
		given, err = p.given()
		p.embeds = given
	case "truncate_prompt_tokens":
		given, err = p.given()
		p.unsure(given, Truncated)
	case "suffix":
		given, err = p.given()
		p.unsure(given, Suffixed)
	case "extra_key":
		given, err = p.given()
		p.unsure(given, Isolated)
	case "documents", "reasoning_effort":
		given, err = p.given()
		p.unsure(given && p.Kind == Chat, Templated)
	case "image_data", "audio_data", "video_data":
		given, err = p.given()
		p.Multimodal = p.Multimodal || given
	default:
		return p.option(key, from)
	}
	return err
}

func (p *parser) unsure(really bool, why string) {
	if really {
		p.Unsure = why
	}
}

// option reads over a member that nothing here knows, and keeps it where it may change
// the prompt. Of a text that is special tokens alone; of a chat it is everything that
// is not known to be about the answer, since a template may read any of it.
func (p *parser) option(key []byte, from int) error {
	if err := p.skip(); err != nil {
		return err
	}
	if p.Kind == Chat && !ofAnswer(key) || string(key) == "add_special_tokens" {
		p.options = append(p.options, span{from, p.s.Offset()})
	}
	return nil
}

// ofAnswer reports whether a member of a chat says how the answer is made, not what
// the prompt is. One that is missing here costs hits of the tokens' cache, no more.
func ofAnswer(key []byte) bool {
	switch string(key) {
	case "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "stop_regex", "best_of", "use_beam_search",
		"frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty", "logit_bias", "min_tokens", "ignore_eos",
		"logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids", "allowed_token_ids", "bad_words", "watermarking",
		"include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "echo":
		return true
	case "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "priority", "request_id", "rid",
		"session_id", "session_params", "stream_interval", "repetition_detection", "routed_experts_prompt_start",
		"return_token_ids", "return_tokens_as_token_ids", "return_token_offsets", "return_prompt_text", "return_hidden_states",
		"return_mm_kwargs", "return_token_strs", "kv_transfer_params", "ec_transfer_params", "vllm_xargs",
		"bootstrap_host", "bootstrap_port", "bootstrap_room":
		return true
	case "parallel_tool_calls", "include_reasoning", "separate_reasoning", "stream_reasoning", "thinking_token_budget",
		"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend",
		"guided_whitespace_pattern", "regex", "ebnf", "custom_logit_processor", "custom_params", "logits_processors":
		return true
	}
	return false
}

// adapter reads the name of an adapter; a list of them goes with a list of prompts.
func (p *parser) adapter() error {
	if p.s.Space() != '[' {
		return p.name(&p.LoRA, p.was[3])
	}
	p.unsure(true, Odd)
	return p.skip()
}

func (p *parser) rank() error {
	p.s.Space()
	from := p.s.Offset()
	n, ok, err := p.count()
	if err != nil {
		return err
	}
	p.Rank = -1
	if ok {
		p.Rank = n
	}
	p.rankAt = span{from, p.s.Offset()}
	return nil
}

// members reads the members of an object; a value of another kind is read over.
func (p *parser) members(read func(key []byte) error) error {
	if p.s.Space() != '{' {
		return p.skip()
	}
	p.s.Take('{')
	for first := true; ; first = false {
		done, err := p.s.Next(first, '}')
		if err != nil {
			return broken(err)
		}
		if done {
			return nil
		}
		key, err := p.s.RawText()
		if err == nil {
			err = p.s.Colon()
		}
		if err != nil {
			return broken(err)
		}
		if err := read(key); err != nil {
			return err
		}
	}
}

func (p *parser) streamOptions() error {
	p.UsageInSSE = false
	return p.members(func(key []byte) (err error) {
		if string(key) == "include_usage" {
			p.UsageInSSE, err = p.flag()
			return err
		}
		return p.skip()
	})
}

// sampling reads SGLang's parameters of an answer.
func (p *parser) sampling() error {
	return p.members(func(key []byte) error {
		var n int
		var ok bool
		var err error
		switch string(key) {
		case "max_new_tokens":
			if n, ok, err = p.count(); ok {
				p.MaxTokens = n
			}
		case "n":
			if n, ok, err = p.count(); ok && n > 0 {
				p.N = n
			}
		default:
			return p.skip()
		}
		return err
	})
}
