# SPDX-License-Identifier: Apache-2.0
"""Runs vLLM's own scheduler without a model: operations in, what it did out.

One JSON object a line on standard input, one answer a line on standard output:

  {"op": "new", "model": folder, "blocks": n, "block_size": n, "budget": n,
   "running": n, "whole": bool}     another scheduler with an empty cache
  {"op": "add", "id": "", "tokens": [], "salt": "" or null, "answer": []}
  {"op": "abort", "id": ""}
  {"op": "reset"}                                  {"ok": bool}
  {"op": "step"}                                   one pass: {"scheduled": [[id, tokens], ...],
   "outputs": [[id, token, finished], ...], "running": [id, ...], "waiting": [id, ...],
   "batches": [[event, ...], ...], "cached": {id: tokens}, "free": [block, ...]}

An event is {"k": "stored", "hashes", "parent", "tokens", "extra"} or
{"k": "removed", "hashes"} or {"k": "cleared"}.
"""
import json
import os
import sys

os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever prints elsewhere is no answer

import torch
from vllm.config import CacheConfig, DeviceConfig, KVEventsConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

HASH = get_hash_fn_by_name("sha256_cbor")
init_none_hash(HASH)


def told(e):
    if isinstance(e, BlockStored):
        return {"k": "stored", "hashes": e.block_hashes, "parent": e.parent_block_hash, "tokens": e.token_ids,
                "extra": [list(x) if x else None for x in e.extra_keys]}
    if isinstance(e, BlockRemoved):
        return {"k": "removed", "hashes": e.block_hashes}
    assert isinstance(e, AllBlocksCleared)
    return {"k": "cleared"}


class Driver:
    models = {}

    def __init__(self, o):
        if o["model"] not in self.models:
            self.models[o["model"]] = ModelConfig(model=o["model"], skip_tokenizer_init=True, dtype="float32", seed=0)
        model = self.models[o["model"]]
        length = model.max_model_len
        self.size = o["block_size"]
        cache = CacheConfig(block_size=self.size, gpu_memory_utilization=0.9, enable_prefix_caching=True)
        config = VllmConfig(
            model_config=model, cache_config=cache, device_config=DeviceConfig("cpu"),
            scheduler_config=SchedulerConfig(
                max_num_seqs=o["running"], max_num_batched_tokens=o["budget"], max_model_len=length, enable_chunked_prefill=True,
                is_encoder_decoder=False, scheduler_reserve_full_isl=o["whole"], async_scheduling=False),
            kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"))
        cache.block_size = self.size
        cache.num_gpu_blocks = o["blocks"]
        spec = FullAttentionSpec(block_size=self.size, num_kv_heads=1, head_size=1, dtype=torch.float32)
        kv = KVCacheConfig(num_blocks=o["blocks"], kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        self.scheduler = Scheduler(vllm_config=config, kv_cache_config=kv, structured_output_manager=StructuredOutputManager(config),
                                   block_size=self.size, hash_block_size=self.size, log_stats=False)
        self.batches = []
        self.scheduler.kv_event_publisher.publish = lambda b: self.batches.append([told(e) for e in b.events])
        self.hasher = get_request_block_hasher(self.size, HASH)
        self.answers = {}

    def add(self, o):
        self.answers[o["id"]] = o["answer"]
        self.scheduler.add_request(Request(
            request_id=o["id"], prompt_token_ids=o["tokens"], pooling_params=None, cache_salt=o.get("salt") or None,
            sampling_params=SamplingParams(max_tokens=len(o["answer"]), ignore_eos=True), block_hasher=self.hasher))
        return {}

    def abort(self, o):
        self.scheduler.finish_requests(o["id"], RequestStatus.FINISHED_ABORTED)
        return {}

    def reset(self, _):
        return {"ok": self.scheduler.reset_prefix_cache()}

    def step(self, _):
        s = self.scheduler
        plan = s.schedule()
        shares = list(plan.num_scheduled_tokens.items())
        ids = [i for i, _ in shares]
        sampled = []
        for i in ids:
            r = s.requests[i]
            sampled.append([self.answers[i][r.num_output_tokens]] if r.num_computed_tokens >= r.num_tokens else [])
        cached = {}
        told_out = s.update_from_output(plan, ModelRunnerOutput(
            req_ids=ids, req_id_to_index={i: k for k, i in enumerate(ids)}, sampled_token_ids=sampled))
        outputs = []
        for o in told_out.values():
            for x in o.outputs:
                outputs.append([x.request_id, x.new_token_ids[0], x.finish_reason is not None])
                if x.prefill_stats is not None:
                    cached[x.request_id] = x.prefill_stats.num_cached_tokens
        batches, self.batches = self.batches, []
        pool = s.kv_cache_manager.block_pool
        return {"scheduled": shares, "outputs": outputs, "running": [r.request_id for r in s.running],
                "waiting": [r.request_id for r in s.waiting], "batches": batches, "cached": cached,
                "free": [b.block_id for b in pool.free_block_queue.get_all_free_blocks()]}


driver = None
for line in sys.stdin:
    op = json.loads(line)
    if op["op"] == "new":
        driver = Driver(op)
        answer = {}
    else:
        answer = getattr(driver, op["op"])(op)
    out.write(json.dumps(answer) + "\n")
    out.flush()
