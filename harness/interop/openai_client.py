# SPDX-License-Identifier: Apache-2.0
"""Asks a mock engine, or a gateway before it, with OpenAI's own client: openai_client.py BASE_URL.

Prints one line for each thing that was checked; what fails ends it.
"""

import sys
import threading

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=30)


def check(name, ok, *said):
    if not ok:
        raise SystemExit(f"{name}: {said}")
    print(name)


names = [m.id for m in client.models.list()]
check("models", sorted(names) == ["adapter", "mock"], names)

messages = [
    {"role": "system", "content": "you answer shortly"},
    {"role": "user", "content": [{"type": "text", "text": "what is the time " * 20}]},
]
whole = client.chat.completions.create(model="mock", messages=messages, max_completion_tokens=7)
check("chat", whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 7, whole)
check("chat role", whole.choices[0].message.role == "assistant", whole)
again = client.chat.completions.create(model="mock", messages=messages, max_tokens=7)
check("chat again", again.choices[0].message.content == whole.choices[0].message.content, again)
cached = again.usage.prompt_tokens_details.cached_tokens
check("cached tokens", cached == (again.usage.prompt_tokens - 1) // 16 * 16 > 0, again.usage)

text, usage, ends = "", None, []
stream = client.chat.completions.create(
    model="mock", messages=messages, max_tokens=7, stream=True, stream_options={"include_usage": True}
)
for chunk in stream:
    check("chunk", chunk.id.startswith("chatcmpl-"), chunk)
    usage = chunk.usage or usage
    for choice in chunk.choices:
        text += choice.delta.content or ""
        ends += [choice.finish_reason] if choice.finish_reason else []
check("chat streamed", text == whole.choices[0].message.content and ends == ["length"], text, ends)
check("streamed usage", usage.completion_tokens == 7 and usage.prompt_tokens == whole.usage.prompt_tokens, usage)

done = client.completions.create(model="adapter", prompt=[5, 6, 7], max_tokens=3, n=2)
check("tokens", [c.index for c in done.choices] == [0, 1] and done.usage.completion_tokens == 6, done)
done = client.completions.create(model="mock", prompt=["one two", "three"], max_tokens=4)
check("texts", len(done.choices) == 2 and done.usage.prompt_tokens == 3, done)
parts = list(client.completions.create(model="mock", prompt="one two", max_tokens=4, stream=True))
check("text streamed", "".join(p.choices[0].text for p in parts) == done.choices[0].text, parts)
word = done.choices[0].text.split()[2]
done = client.completions.create(model="mock", prompt="one two", max_tokens=4, stop=[word])
check("stop", done.choices[0].finish_reason == "stop" and word not in done.choices[0].text, done)

scored = client.chat.completions.create(model="mock", messages=messages, max_tokens=3, logprobs=True, top_logprobs=2)
content = scored.choices[0].logprobs.content
check("logprobs", "".join(t.token for t in content) == scored.choices[0].message.content, scored)
check("alternatives", all(t.logprob <= 0 and len(t.top_logprobs) == 2 for t in content), scored)
scored = client.completions.create(model="mock", prompt="one two", max_tokens=3, logprobs=2).choices[0]
check("text logprobs", "".join(scored.logprobs.tokens) == scored.text and len(scored.logprobs.top_logprobs) == 3, scored)

for dimensions in (16, 64):
    vectors = client.embeddings.create(model="mock", input=["one two", "three", "one two"], dimensions=dimensions)
    a, b, c = (v.embedding for v in vectors.data)
    check("embeddings", a == c != b and len(a) == dimensions and vectors.usage.prompt_tokens == 5, vectors.usage)

picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
for seen in (False, True):
    chat = [{"role": "user", "content": [{"type": "text", "text": "what is this"}, picture]}]
    usage = client.chat.completions.create(model="mock", messages=chat, max_tokens=1).usage
    check("image", (usage.prompt_tokens_details.cached_tokens >= 64) == seen, usage)

raw = client.completions.with_raw_response.create(
    model="mock", prompt="one", max_tokens=1, extra_headers={"X-Request-Id": "mine"}, extra_body={"cache_salt": "s"}
)
check("request id", raw.parse().id == "cmpl-mine" and raw.headers["x-request-id"] == "mine", raw.headers)

for name, kind, call in [
    ("no such model", openai.NotFoundError, dict(model="other", prompt="x")),
    ("too long", openai.BadRequestError, dict(model="mock", prompt="x", max_tokens=10**6)),
    ("nothing to say", openai.BadRequestError, dict(model="mock", prompt="x", max_tokens=0)),
    ("no prompt", openai.BadRequestError, dict(model="mock", prompt=[])),
]:
    try:
        client.completions.create(**call)
        check(name, False, "it was answered")
    except kind as error:
        # An engine's code is the status; a gateway's own refusals have a word.
        check(name, error.body["code"] in (error.status_code, "model_not_found") and error.body["message"], error.body)

left = client.completions.create(model="mock", prompt="x y z", max_tokens=2000, stream=True)
next(iter(left))
left.close()


errors = []


def one(i):
    try:
        client.completions.create(model="mock", prompt=[i, i + 1, i + 2], max_tokens=1 + i % 5)
    except openai.OpenAIError as error:
        errors.append(error)


threads = [threading.Thread(target=one, args=(i,)) for i in range(40)]
for t in threads:
    t.start()
for t in threads:
    t.join()
check("side by side", not errors, errors)
print("done")
