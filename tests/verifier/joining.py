"""The network one can compute by hand, with calls of several windows: what a device does, written down in Python."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from deployments.lm.cache.pages import PageAllocator
from deployments.lm.cache.prefix import PrefixCache
from deployments.lm.drafting.build import build_strategy
from deployments.lm.drafting.ngram import NgramIndex, NgramSettings
from deployments.verifier.asking import Rules
from deployments.verifier.calls import ChipSettings, RoundsInput, RoundsOutput, RoundsSize, calls_for
from deployments.verifier.engine import Engine, EngineSettings
from deployments.verifier.onboard import OnboardDrafts
from deployments.verifier.programs import LaunchedRounds
from tests.verifier.recalling import VOCABULARY, RecallingPrograms, next_token
from tests.verifier.serving import Tallies

SLOTS, CONTEXT, PAGE_SIZE, DRAFT_K = 3, 64, 4, 3


class _Joined(LaunchedRounds):
    def __init__(self, out: RoundsOutput) -> None:
        object.__setattr__(self, "out", out)


@dataclass(kw_only=True)
class _Row:
    """One slot's part of a call."""

    tokens: list[int]
    pages: Any
    missing: int
    most: int
    seed: int
    choice: int
    ends: set[int]


class JoiningPrograms(RecallingPrograms):
    """`Programs` of that network, which also runs calls."""

    def __init__(self, *, rounds: int, rows: tuple[int, ...] = (8, 16)) -> None:
        super().__init__(slots=SLOTS, context=CONTEXT, page_size=PAGE_SIZE, draft_k=DRAFT_K, rows=rows)
        self.drafter = NgramSettings(min_n=1, max_n=2, max_k=DRAFT_K)
        chip = ChipSettings(drafter=self.drafter, rounds=rounds)
        self.calls = calls_for(self.ladder, chip=chip, longest=DRAFT_K, most_rows=SLOTS * (1 + DRAFT_K)).sizes
        self.asked: list[int] = []

    def launch_rounds(self, taken: RoundsInput, /, *, size: RoundsSize) -> LaunchedRounds:
        self.asked.append(int(taken.most))
        rows = {index: _row(taken, index=index) for index in range(SLOTS) if np.asarray(taken.ints)[index, 0]}
        shape = (size.most, SLOTS)
        out = RoundsOutput(
            tokens=np.zeros((*shape, DRAFT_K + 1), np.int32),  # type: ignore[arg-type]  # as it is on the host
            drafts=np.zeros((*shape, DRAFT_K), np.int32),  # type: ignore[arg-type]
            drafted=np.zeros(shape, np.int32),  # type: ignore[arg-type]
            live=np.zeros(shape, np.int32),  # type: ignore[arg-type]
            scores=np.zeros((*shape, DRAFT_K + 1), np.float32),  # type: ignore[arg-type]
            ran=0,  # type: ignore[arg-type]
        )
        ran = 0
        while ran < int(taken.most) and rows:
            used = 0
            for index, row in list(rows.items()):
                used += self._round(row, out=out, at=(ran, index))
                if not row.missing:
                    del rows[index]
            assert used <= min(size.rung.rows, size.emits)
            ran += 1
        return _Joined(out._replace(ran=np.asarray(ran)))  # type: ignore[arg-type]

    def _round(self, row: _Row, *, out: Any, at: tuple[int, int]) -> int:
        index = NgramIndex(min_n=self.drafter.min_n, max_n=self.drafter.max_n)
        index.extend(tuple(row.tokens))
        k = min(row.most, row.missing - 1)
        drafts = index.continuation(k=k) if k else ()
        start = len(row.tokens) - 1
        for place, token in enumerate((row.tokens[-1], *drafts)):
            page, offset = divmod(start + place, PAGE_SIZE)
            self._memory[row.pages[page], offset] = token
        draws = []
        for place in range(1 + len(drafts)):
            text = self._memory[row.pages].reshape(-1)[: start + place + 1].tolist()
            draws.append(next_token(text, seed=row.seed, choice=row.choice))
            if place < len(drafts) and draws[-1] != drafts[place]:
                break
        out.tokens[(*at, slice(len(draws)))] = draws
        out.drafts[(*at, slice(len(drafts)))] = drafts
        out.drafted[at], out.live[at] = len(drafts), len(draws)
        for token in draws:
            row.missing = 0 if token in row.ends else row.missing - 1
            row.tokens.append(token)
            if not row.missing:
                break
        return 1 + len(drafts)


def joining_engine(
    *,
    rounds: int = 4,
    pages: int | None = None,
    reserve: int = 256,
    metrics: Tallies | None = None,
    rules: Rules | None = None,
    rows: tuple[int, ...] = (8, 16),
) -> tuple[Engine, JoiningPrograms]:
    """An engine on it; `pages` makes the cache smaller than the slots could use."""
    programs = JoiningPrograms(rounds=rounds, rows=rows)
    allocator = PageAllocator(pages or programs.pages, page_size=PAGE_SIZE)
    settings = EngineSettings(
        slots=SLOTS, context=CONTEXT, draft_k=DRAFT_K, page_size=PAGE_SIZE, reserve_tokens=reserve, rounds=rounds
    )
    engine = Engine(
        settings,
        programs=programs,
        allocator=allocator,
        prefix=PrefixCache(allocator, root=b"joining"),
        drafts=OnboardDrafts(build_strategy(programs.drafter)),
        vocabulary=VOCABULARY,
        metrics=metrics or Tallies(),
        rules=rules,
    )
    return engine, programs


def _row(taken: RoundsInput, *, index: int) -> _Row:
    length, missing, most, _, seed, choice = np.asarray(taken.ints)[index].tolist()
    return _Row(
        tokens=np.asarray(taken.histories)[index, :length].tolist(),
        pages=np.asarray(taken.pages)[index],
        missing=missing,
        most=most,
        seed=seed & 0xFFFFFFFF,
        choice=choice,
        ends=set(np.asarray(taken.ends)[index].tolist()) - {-1},
    )
