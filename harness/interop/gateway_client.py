# SPDX-License-Identifier: Apache-2.0
"""Asks a gateway with OpenAI's own client what an engine alone cannot answer:
gateway_client.py BASE_URL. It wants a mock engine that takes long over a pass.

Prints one line for each thing that was checked; what fails ends it.
"""

import json
import sys
import time

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=30)
ask = dict(model="mock", messages=[{"role": "user", "content": "one two three " * 20}])


def check(name, ok, *said):
    if not ok:
        raise SystemExit(f"{name}: {said}")
    print(name)


raw = client.chat.completions.with_raw_response.create(**ask, max_tokens=2, extra_headers={"X-Kindex-Explain": "1", "X-Request-Id": "mine"})
why = json.loads(raw.headers["x-kindex-explain"])
check("explained", why["candidates"] and raw.headers["x-kindex-worker"] == why["candidates"][0]["worker"], raw.headers)
check("request id", raw.headers["x-request-id"] == "mine", raw.headers)

try:
    client.chat.completions.create(model="other", messages=ask["messages"])
    check("no such model", False)
except openai.NotFoundError as error:
    check("no such model", error.code == "model_not_found" and error.response.headers["x-kindex-error-code"] == "model_not_found", error.body)
    check("its request id", error.request_id, error.response.headers)

try:
    client.post("/completions", body={"model": 7, "prompt": "x"}, cast_to=object)
    check("wrong type", False)
except openai.BadRequestError as error:
    check("wrong type", error.param == "model" and error.type == "invalid_request_error", error.body)

try:
    client.with_options(timeout=0.3).chat.completions.create(**ask, max_tokens=2000)
    check("timeout", False)
except openai.APITimeoutError:
    check("timeout", True)

left = client.chat.completions.create(**ask, max_tokens=2000, stream=True)
next(iter(left))
left.close()
check("hung up", True)

first, began = None, time.monotonic()
for chunk in client.chat.completions.create(**ask, max_tokens=8, stream=True):
    if chunk.choices and chunk.choices[0].delta.content and first is None:
        first = time.monotonic() - began
check("streamed as it comes", first < (time.monotonic() - began) / 2, first)
print("done")
