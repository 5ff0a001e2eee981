"""Exact where it is easiest to be wrong: ends inside a block, borders of pages and tiles, choices, strange company.

And the comparison itself: a wrong acceptance rule and a cache write one row off must each make it fail.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from msgspec.structs import replace

from deployments.lm.quant.linear import Precision
from deployments.messages.generation import FinishReason, GenerateRequest, SpeculationSettings
from deployments.verifier import packing, window
from deployments.verifier.drafts import Drafts, DraftSource, DraftWanted, NoDrafts
from deployments.verifier.loading import LoadedModel, load_model
from deployments.verifier.plan import Span
from tests.verifier.comparing import DRAFTERS, SAMPLERS, Plain, alone, compared, requests_for, run, write_oracle
from tests.verifier.conftest import LoadGolden
from tests.verifier.serving import Reply, Tallies


@pytest.fixture(scope="module")
def model(load_golden: LoadGolden) -> LoadedModel:
    """The one that compiles fastest; what is tested here is arithmetic on positions."""
    return load_golden(Precision.INT8)


@pytest.fixture(scope="module")
def plain(model: LoadedModel, golden_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Plain:
    requests = requests_for(golden_llama)
    replies = alone(model, requests)
    path = tmp_path_factory.mktemp("oracle") / "oracle.json"
    return Plain(requests=requests, replies=replies, oracle=write_oracle(path, requests=requests, replies=replies))


@dataclasses.dataclass(kw_only=True)
class Fickle:
    """A source that answers differently every time: right, wrong, right and then wrong, briefly, or not at all."""

    right: DraftSource
    random: Random

    def begin(self, request: GenerateRequest, /) -> None:
        self.right.begin(request)

    def ask(self, wanted: Sequence[DraftWanted], /) -> None:
        self.right.ask(wanted)

    def exchange(self, wanted: Sequence[DraftWanted], /) -> Drafts:
        tokens = {}
        for name, guess in self.right.exchange(wanted).tokens.items():
            cut = self.random.randrange(len(guess) + 1)
            wrong = tuple(self.random.randrange(512) for _ in guess[cut:])
            kept = self.random.choice([guess, guess[:cut], guess[:cut] + wrong, wrong])
            if kept:
                tokens[name] = kept
        return Drafts(tokens=tokens, kind="fickle")

    def close(self, request_id: str, /, *, reason: str) -> None:
        self.right.close(request_id, reason=reason)


@pytest.mark.parametrize("seed", range(3))
def test_a_drafter_that_changes_its_mind(model: LoadedModel, plain: Plain, seed: int) -> None:
    drafts = Fickle(right=DRAFTERS["oracle"](plain.oracle), random=Random(seed))

    assert compared(plain.replies, run(model, plain.requests, drafts=drafts)) > 300


@pytest.mark.parametrize("drafter", ["off", "ngram-3", "oracle", "random"])
def test_requests_that_join_and_leave_at_any_time(model: LoadedModel, plain: Plain, drafter: str) -> None:
    engine = model.engine(drafts=DRAFTERS[drafter](plain.oracle), metrics=Tallies())
    waiting = list(plain.requests)
    extra = [replace(request, request_id=f"cancelled-{request.request_id}") for request in plain.requests]
    replies = {request.request_id: Reply() for request in (*waiting, *extra)}
    while waiting or not engine.is_idle:
        if waiting:
            engine.submit(waiting.pop())
            engine.submit(extra[len(waiting)])
        for delivery in engine.step():
            replies[delivery.request_id].take(delivery)
        if len(waiting) % 2:
            engine.cancel(extra[len(waiting)].request_id)
        engine.scheduler.check_integrity()

    assert compared(plain.replies, {name: replies[name] for name in plain.replies}) > 300


@pytest.mark.parametrize("drafter", ["off", "ngram-7", "oracle"])
@pytest.mark.parametrize("number", [0, 1])
def test_an_end_token_inside_a_block_ends_the_reply_there(
    model: LoadedModel, plain: Plain, number: int, drafter: str
) -> None:
    """Whatever the drafts after it were. The oracle does not know of the end, so its blocks go past it."""
    request = plain.requests[number]
    whole = plain.replies[request.request_id].tokens
    for place in range(12):
        one = replace(request, end_ids=(whole[place], 10**6), max_tokens=24)
        reply = run(model, [one], drafts=DRAFTERS[drafter](plain.oracle))[one.request_id]
        assert reply.tokens == whole[: whole.index(whole[place])]
        assert reply.finish is FinishReason.STOP


def test_an_end_token_where_the_reply_would_end_anyway(model: LoadedModel, plain: Plain) -> None:
    request = plain.requests[1]
    whole = plain.replies[request.request_id].tokens
    last = next(place for place in range(8, 40) if whole[place] not in whole[:place])
    for drafter in ("off", "oracle"):
        one = replace(request, end_ids=(whole[last],), max_tokens=last + 1)
        reply = run(model, [one], drafts=DRAFTERS[drafter](plain.oracle))[one.request_id]
        assert (reply.tokens, reply.finish) == (whole[:last], FinishReason.STOP)


@pytest.mark.parametrize("drafter", ["off", "ngram-7", "oracle"])
def test_max_tokens_inside_a_block_ends_the_reply_there(model: LoadedModel, plain: Plain, drafter: str) -> None:
    request = plain.requests[0]
    whole = plain.replies[request.request_id].tokens
    for most in range(1, 20):
        one = replace(request, max_tokens=most)
        reply = run(model, [one], drafts=DRAFTERS[drafter](plain.oracle))[one.request_id]
        assert (reply.tokens, reply.finish) == (whole[:most], FinishReason.LENGTH)
        assert reply.statistics.draft_n_accepted <= max(most - 2, 0)


@pytest.mark.parametrize("number", [1, 3])
def test_prompts_of_every_length_around_the_borders(
    model: LoadedModel, plain: Plain, tmp_path: Path, number: int
) -> None:
    """Pages hold 16 positions and tiles 4 rows: lengths 29 to 50 put every place of a block on every border."""
    source = plain.requests[3].prompt_ids
    requests = [
        replace(plain.requests[number], request_id=f"p{length}", prompt_ids=source[:length], max_tokens=20)
        for length in range(29, 51)
    ]
    wanted = alone(model, requests)
    oracle = write_oracle(tmp_path / "oracle.json", requests=requests, replies=wanted)
    for drafter in ("ngram-7", "oracle", "random"):
        assert compared(wanted, run(model, requests, drafts=DRAFTERS[drafter](oracle))) == 22 * 20


def test_choices_differ_and_each_is_its_own(model: LoadedModel, plain: Plain, tmp_path: Path) -> None:
    request = replace(plain.requests[1], sampling=replace(SAMPLERS[1], seed=77), max_tokens=24)
    choices = [replace(request, request_id=f"c{number}", choice=number) for number in range(4)]
    wanted = alone(model, choices)
    oracle = write_oracle(tmp_path / "oracle.json", requests=choices, replies=wanted)

    assert len({tuple(reply.tokens) for reply in wanted.values()}) == 4
    for drafter in ("ngram-3", "oracle", "random"):
        compared(wanted, run(model, choices, drafts=DRAFTERS[drafter](oracle)))


@pytest.mark.parametrize("speculation", [SpeculationSettings(enabled=False), SpeculationSettings(max_draft=2)])
def test_what_a_client_says_about_speculation_changes_no_reply(
    model: LoadedModel, plain: Plain, speculation: SpeculationSettings
) -> None:
    requests = [replace(request, speculation=speculation) for request in plain.requests]
    replies = run(model, requests, drafts=DRAFTERS["oracle"](plain.oracle))

    compared(plain.replies, replies)
    longest = max(len(reply.statistics.rounds) - 1 for reply in replies.values())
    assert longest == (2 if speculation.enabled else -1)


def test_a_reply_that_fills_the_context(model: LoadedModel, plain: Plain, tmp_path: Path) -> None:
    """Up to the last position of the last page."""
    context = model.settings.context
    prompt = (plain.requests[3].prompt_ids * 2)[: context - 24]
    request = replace(plain.requests[0], request_id="full", prompt_ids=prompt, max_tokens=24)
    wanted = alone(model, [request])
    oracle = write_oracle(tmp_path / "oracle.json", requests=[request], replies=wanted)
    for drafter in ("ngram-7", "oracle", "random"):
        assert compared(wanted, run(model, [request], drafts=DRAFTERS[drafter](oracle))) == 24


def one_wrong_token_more(right: Callable[..., Array]) -> Callable[..., Array]:
    """Keeps the first wrong draft as well."""

    def accept(draws: Array, *, tokens: Array, first: Array, longest: int) -> Array:
        live = right(draws, tokens=tokens, first=first, longest=longest)
        return live | (jnp.roll(live, 1) & ~first)

    return accept


@pytest.mark.parametrize("drafter", ["ngram-3", "random"])
def test_the_comparison_notices_a_wrong_acceptance_rule(
    model: LoadedModel, plain: Plain, monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    monkeypatch.setattr(window, "accept", one_wrong_token_more(window.accept))
    wrong = load_model(dataclasses.replace(model.settings, slots=2, ladder=(8,)), progress=lambda text: None)

    compared(plain.replies, run(wrong, plain.requests[:2], drafts=NoDrafts()))
    with pytest.raises(AssertionError):
        compared(plain.replies, run(wrong, plain.requests[:2], drafts=DRAFTERS[drafter](plain.oracle)))


@pytest.mark.parametrize("drafter", ["off", "ngram-3", "random", "oracle"])
def test_the_comparison_notices_a_cache_write_one_row_off(
    model: LoadedModel, plain: Plain, monkeypatch: pytest.MonkeyPatch, drafter: str
) -> None:
    right = packing._pack_rows

    def one_off(span: Span, *, rows: np.ndarray, first_lane: int, page_size: int) -> None:
        right(span, rows=rows, first_lane=first_lane, page_size=page_size)
        rows[:, 3] = (rows[:, 3] + 1) % page_size

    monkeypatch.setattr(packing, "_pack_rows", one_off)
    with pytest.raises(AssertionError):
        compared(plain.replies, run(model, plain.requests[:2], drafts=DRAFTERS[drafter](plain.oracle)))
