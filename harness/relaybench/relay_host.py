# SPDX-License-Identifier: Apache-2.0
"""Serves the released peer's relay without an engine: HOST_PORT PUB_PORT REPLAY_PORT TOKENIZER SOCKETS."""
import sys
import time

from smg.servicer import VllmGrpcServer, init_servicer_tracing

grpc_port, pub, replay, tokenizer, sockets = sys.argv[1:6]
init_servicer_tracing("error")
server = VllmGrpcServer(
    f"127.0.0.1:{grpc_port}",
    f"ipc://{sockets}/engine",
    f"ipc://{sockets}/handshake",
    tokenizer,
    kv_events_endpoint=f"tcp://127.0.0.1:{pub}",
    kv_events_replay_endpoint=f"tcp://127.0.0.1:{replay}",
    block_size=16,
    max_num_seqs=64,
)
while True:
    time.sleep(3600)
