"""The engine says ahead what it will want of its drafters, so that they draft while it hands a window out."""

from collections.abc import Sequence

from deployments.verifier.drafts import Drafts, DraftWanted
from tests.verifier.recalling import recalling_engine
from tests.verifier.test_engine import Guessing, request

type _State = tuple[str, int, int, int]


class _Noting(Guessing):
    """Keeps what was asked ahead, and compares it with what is then wanted."""

    def __init__(self) -> None:
        super().__init__(skill=1.0)
        self._asked: set[_State] = set()
        self.rounds: list[bool] = []

    def ask(self, wanted: Sequence[DraftWanted], /) -> None:
        self._asked = _states(wanted)

    def exchange(self, wanted: Sequence[DraftWanted], /) -> Drafts:
        self.rounds.append(_states(wanted) == self._asked)
        return super().exchange(wanted)


def _states(wanted: Sequence[DraftWanted]) -> set[_State]:
    return {(item.request.request_id, len(item.sequence), item.k, item.accepted) for item in wanted}


def test_every_round_was_asked_ahead_as_it_is_then_wanted() -> None:
    source = _Noting()
    engine, _ = recalling_engine(source, draft_k=3)
    for number in range(12):
        engine.submit(request(number, prompt=3 + number, tokens=20 + number))
    while not engine.is_idle:
        engine.step()
    assert len(source.rounds) > 10
    assert all(source.rounds)
