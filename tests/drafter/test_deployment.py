"""The drafter deployment as Serve uses it, without Serve; and as a process of its own."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deployments.drafter.deployment import DrafterServer
from deployments.lm.drafting.ngram import NgramSettings
from deployments.lm.drafting.oracle import OracleSettings
from deployments.messages.drafting import AcceptedPrefix, DraftBlock, DrafterEndpoint, Hello, Open, Welcome
from deployments.messages.errors import ConfigError
from deployments.messages.frames import FrameReader, encode_frames, read_for_verifier
from deployments.messages.generation import SamplingSettings
from tests.drafter.tally import Tally

OPEN = Open(request_id="r", prompt_ids=(1, 2, 3, 1), sampling=SamplingSettings(), choice=0, k_max=8)
COMMIT = AcceptedPrefix(request_id="r", base_len=4, token_ids=(2,), accepted=0, generation=1, k=9)


async def converse(endpoint: DrafterEndpoint) -> list[Any]:
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    writer.write(encode_frames([Hello(secret=endpoint.secret, verifier="v"), OPEN, COMMIT]))
    frames = FrameReader()
    messages: list[Any] = []
    async with asyncio.timeout(5):
        while len(messages) < 2:
            messages += [read_for_verifier(body) for body in frames.bodies(await reader.read(65536))]
    writer.close()
    return messages


async def test_it_listens_where_it_says_and_drafts() -> None:
    replica = DrafterServer(strategy=NgramSettings(max_k=2), metrics=Tally, listen_host="127.0.0.1")
    await replica.check_health()
    endpoint, again = await asyncio.gather(replica.endpoint(), replica.endpoint())
    assert endpoint == again
    assert await converse(endpoint) == [
        Welcome(drafter=endpoint.replica, kind="ngram", max_k=2),
        DraftBlock(request_id="r", base_len=5, generation=1, token_ids=(3, 1)),
    ]
    # Counted after the answers are out.
    for _ in range(500):
        if "drafter_blocks 1\n" in (page := await replica.metrics()):
            break
        await asyncio.sleep(0.01)
    assert "drafter_blocks 1\n" in page
    await replica.check_health()
    await replica.stop()
    with pytest.raises(RuntimeError):
        await replica.check_health()


async def test_replicas_have_names_and_secrets_of_their_own() -> None:
    replicas = [DrafterServer(strategy=NgramSettings(), metrics=Tally, listen_host="127.0.0.1") for _ in range(2)]
    first, second = [await replica.endpoint() for replica in replicas]
    assert first.secret != second.secret
    assert len(first.secret) == 64
    assert first.replica != second.replica
    for replica in replicas:
        await replica.stop()


async def test_listening_everywhere_advertises_an_address() -> None:
    replica = DrafterServer(strategy=NgramSettings(), metrics=Tally, listen_host="0.0.0.0")
    endpoint = await replica.endpoint()
    assert endpoint.host != "0.0.0.0"
    assert len(await converse(endpoint)) == 2
    await replica.stop()


def test_a_strategy_that_cannot_be_built_is_said_at_once() -> None:
    with pytest.raises(ConfigError):
        DrafterServer(strategy=OracleSettings(path="/none.json"), metrics=Tally)


def test_a_process_of_its_own_answers() -> None:
    script = Path(__file__).with_name("drafter_process.py")
    with subprocess.Popen([sys.executable, script, '{"max_k": 3}'], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        endpoint = msgspec.json.decode(process.stdout.readline(), type=DrafterEndpoint)
        assert asyncio.run(converse(endpoint))[1] == DraftBlock(
            request_id="r", base_len=5, generation=1, token_ids=(3, 1, 2)
        )
        process.kill()
