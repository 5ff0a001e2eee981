"""The deployment as its callers see it, on a real file; only the metrics' exporter is replaced by one that records."""

import asyncio
import pickle
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from deployments.messages.errors import CheckpointError, InvalidRequest, UnknownTemplate, UnknownTokenizer
from deployments.messages.generation import ChatTurn
from deployments.messages.metrics import MetricKind, MetricSpec
from deployments.tokenizer.counters import REQUESTS, SECONDS, SPECS, TOKENS
from deployments.tokenizer.deployment import TokenizerServer

type WriteVocabulary = Callable[..., Path]


class Recorder:
    """Metrics that can be read back. Refuses, as a real exporter would, what was not declared."""

    def __init__(self, specs: tuple[MetricSpec, ...], /) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self.values: Counter[tuple[str, ...]] = Counter()

    def add(self, name: str, *, amount: float = 1.0, labels: tuple[str, ...] = ()) -> None:
        self._record(name, kind=MetricKind.COUNTER, amount=amount, labels=labels)

    def set(self, name: str, *, value: float, labels: tuple[str, ...] = ()) -> None:
        raise AssertionError(f"{name}: this room has no gauges")

    def observe(self, name: str, *, value: float, labels: tuple[str, ...] = ()) -> None:
        assert value > 0
        self._record(name, kind=MetricKind.HISTOGRAM, amount=1, labels=labels)

    def exposition(self) -> str:
        return "".join(f"{' '.join(key)} {value:g}\n" for key, value in sorted(self.values.items()))

    def _record(self, name: str, *, kind: MetricKind, amount: float, labels: tuple[str, ...]) -> None:
        spec = self._specs[name]
        assert spec.kind is kind
        assert len(spec.labels) == len(labels)
        self.values[name, *labels] += int(amount)


@pytest.fixture
def server(golden_llama: Path) -> TokenizerServer:
    return TokenizerServer(model=str(golden_llama / "llama.f16.gguf"), locate=Path, metrics=Recorder)


async def test_text_and_conversations(server: TokenizerServer) -> None:
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    prompt = await server.encode_text(text)
    assert prompt.token_ids == (498, 84, 260, 81, 198, 39, 72, 499, 198, 498, 386, 402, 325, 83, 198)
    assert await server.encode_chat((ChatTurn(role="user", content="Hi"),)) == prompt
    await server.check_health()


async def test_a_folder_answers_as_its_gguf_file_does(server: TokenizerServer, golden_llama: Path) -> None:
    folder = TokenizerServer(model=str(golden_llama), locate=Path, metrics=Recorder)
    turns = (ChatTurn(role="user", content="Hi<|im_end|> 日本"),)
    assert await folder.encode_chat(turns) == await server.encode_chat(turns)
    text = "<|im_start|>user\n日本 🙂<|im_end|>"
    assert await folder.encode_text(text) == await server.encode_text(text)
    ours, theirs = await folder.table(), await server.table()
    assert (ours.blob, ours.special_ids, ours.end_ids) == (theirs.blob, theirs.special_ids, theirs.end_ids)
    await folder.check_health()


async def test_the_table_survives_the_way_to_another_process(server: TokenizerServer) -> None:
    table = await server.table()
    assert pickle.loads(pickle.dumps(table)) == table
    assert table.has_chat_template
    assert (len(table.ends), table.ends[-1]) == (512, len(table.blob))
    assert table.special_ids == {497, 498, 499}
    assert table.end_ids == (499, 497)


async def test_what_is_counted(server: TokenizerServer) -> None:
    await server.encode_text("Hi")
    await server.encode_chat((ChatTurn(role="user", content="Hi"),))
    with pytest.raises(InvalidRequest, match="lone surrogate") as caught:
        await server.encode_text("\ud800")
    assert caught.value.param == "prompt"
    lines = (await server.metrics()).splitlines()
    assert lines == [
        f"{SECONDS} chat 1",
        f"{SECONDS} text 1",
        f"{REQUESTS} chat encoded 1",
        f"{REQUESTS} text encoded 1",
        f"{REQUESTS} text refused 1",
        f"{TOKENS} chat 15",
        f"{TOKENS} text 2",
    ]


def test_the_names_of_metrics() -> None:
    assert all(spec.name.startswith("tokenizer_") and not spec.name.endswith("_total") for spec in SPECS)
    assert all(tuple(sorted(spec.buckets)) == spec.buckets for spec in SPECS)


@pytest.mark.parametrize("text", ["a" * 1_000_000, "The end. <|im_end|>" * 52_000, "<" * 1_000_000])
async def test_a_long_prompt_leaves_the_event_loop_free(server: TokenizerServer, text: str) -> None:
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(time.perf_counter())
            await asyncio.sleep(0.002)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    began = time.perf_counter()
    prompt, conversation = await asyncio.gather(
        server.encode_text(text), server.encode_chat((ChatTurn(role="user", content=text),))
    )
    ended = time.perf_counter()
    ticking.cancel()
    assert len(prompt.token_ids) > 100_000
    assert len(conversation.token_ids) > 100_000
    within = [moment for moment in ticks if began < moment < ended]
    longest = max(b - a for a, b in zip([began, *within], [*within, ended], strict=True))
    assert longest < max(0.25, 0.5 * (ended - began))


async def test_many_at_once(server: TokenizerServer) -> None:
    texts = [f"request {index} <|im_end|> {'x' * index}" for index in range(200)]
    alone = [await server.encode_text(text) for text in texts]
    assert await asyncio.gather(*(server.encode_text(text) for text in texts)) == alone


async def test_a_cancelled_request_is_counted_as_such(server: TokenizerServer) -> None:
    task = asyncio.create_task(server.encode_text("a" * 300_000))
    await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert f"{REQUESTS} text cancelled 1\n" == await server.metrics()


async def test_a_file_without_a_template(write_vocabulary: WriteVocabulary) -> None:
    server = TokenizerServer(model=str(write_vocabulary(chat_template=None)), locate=Path, metrics=Recorder)
    assert not (await server.table()).has_chat_template
    assert (await server.encode_text("ab")).token_ids == (256,)
    with pytest.raises(InvalidRequest, match="/v1/completions"):
        await server.encode_chat((ChatTurn(role="user", content="Hi"),))


def test_what_does_not_start(write_vocabulary: WriteVocabulary, tmp_path: Path) -> None:
    with pytest.raises(UnknownTokenizer, match="'nobody-knows'"):
        TokenizerServer(model=str(write_vocabulary(ggml__pre="nobody-knows")), locate=Path, metrics=Recorder)
    with pytest.raises(UnknownTemplate, match="endfor"):
        TokenizerServer(model=str(write_vocabulary(chat_template="{% endfor %}")), locate=Path, metrics=Recorder)
    with pytest.raises(CheckpointError, match="does not exist"):
        TokenizerServer(model=str(tmp_path / "none.gguf"), locate=Path, metrics=Recorder)
