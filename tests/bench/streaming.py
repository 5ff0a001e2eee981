"""What streaming costs beside the model: 8 streams at once through the whole graph, over a network that costs nothing.

python -m tests.bench.streaming [ROUNDS]

The golden llama takes about a millisecond per window, so what is measured is the graph: verifier replica, ingress,
proxy. Prints tokens per second, and milliseconds of CPU time per thousand tokens of each part, client included.
"""

import asyncio
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from serve_app.benchmark.processes import cpu_seconds
from serve_app.config import AppConfig
from serve_app.local import Service, serving

_STREAMS = 8
_TOKENS = 200
_MODEL = Path(__file__).parents[1] / "data" / "golden" / "llama" / "llama.f16.gguf"


async def _stream(host: str, *, port: int, body: bytes) -> tuple[int, int]:
    """Sends one request and reads its stream to the end; returns how many tokens and events it had."""
    reader, writer = await asyncio.open_connection(host, port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    received = await reader.read()
    writer.close()
    assert received.startswith(b"HTTP/1.1 200"), received[:200]
    counted = re.search(rb'"completion_tokens":(\d+)', received)
    assert counted is not None, received[-500:]
    return int(counted[1]), received.count(b"data: ")


async def _round(service: Service, *, seed: int) -> tuple[float, int, int]:
    host, _, port = service.url.removeprefix("http://").partition(":")
    bodies = [_body(service.model, seed=seed * _STREAMS + i) for i in range(_STREAMS)]
    started = time.perf_counter()
    replies = await asyncio.gather(*(_stream(host, port=int(port), body=body) for body in bodies))
    seconds = time.perf_counter() - started
    return seconds, sum(tokens for tokens, _ in replies), sum(events for _, events in replies)


def _body(model: str, *, seed: int) -> bytes:
    return json.dumps(
        {
            "model": model,
            "prompt": [1 + (seed * 7 + i) % 300 for i in range(16)],
            "max_tokens": _TOKENS,
            "temperature": 1.0,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            "speculation": {"enabled": False},
        }
    ).encode()


def _measure(service: Service, *, rounds: int) -> None:
    for seed in range(2):
        asyncio.run(_round(service, seed=seed))
    rates: list[float] = []
    events = tokens = 0
    before = _cpu()
    for seed in range(rounds):
        seconds, drawn, sent = asyncio.run(_round(service, seed=seed))
        rates.append(drawn / seconds)
        tokens, events = tokens + drawn, events + sent
    used = {role: seconds - before.get(role, 0.0) for role, seconds in _cpu().items()}
    thousands = tokens / 1e3
    print(f"tokens/s: median {statistics.median(rates):.0f}, from {min(rates):.0f} to {max(rates):.0f}")
    print(f"events per token: {events / tokens:.2f}")
    for role, seconds in sorted(used.items(), key=lambda item: -item[1]):
        print(f"  {role:12} {1e3 * seconds / thousands:7.1f} ms per 1000 tokens")


def _cpu() -> Mapping[str, float]:
    return cpu_seconds(os.getpid()) | {"client": sum(os.times()[:2])}


def main() -> None:
    """Starts the application, measures, stops it."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    verifier = {"precision": "f32", "context": 512}
    config = AppConfig.model_validate({"model": str(_MODEL), "drafter": {"kind": "off"}, "verifier": verifier})
    with serving(config, port=0, quiet=True) as service:
        _measure(service, rounds=rounds)


if __name__ == "__main__":
    main()
