"""The pure parts of the measurement; the whole of it is in test_check."""

from collections import Counter

import pytest

from deployments.verifier.sizing import ModelSettings
from serve_app.gating.checks.profit import acceptance_of, tried_lengths


@pytest.mark.parametrize(
    ("draft_k", "draft_rows", "active", "wanted"),
    [
        (7, 8, 1, (1, 2, 3, 5, 7)),
        (7, 8, 2, (1, 2, 3, 4)),
        (7, 8, 3, (1, 2)),
        (7, 8, 8, (1,)),
        (7, 8, 16, ()),
        (7, None, 16, (1, 2, 3, 5, 7)),
        (8, 64, 1, (1, 2, 3, 5, 7, 8)),
        (1, 8, 1, (1,)),
    ],
)
def test_lengths_fit_the_room_for_drafts(
    draft_k: int, draft_rows: int | None, active: int, wanted: tuple[int, ...]
) -> None:
    settings = ModelSettings(model_path="", draft_k=draft_k, draft_rows=draft_rows, slots=16)
    assert tried_lengths(settings, active=active) == wanted


def test_acceptance_is_of_those_that_were_verified() -> None:
    # Ten windows with three drafts, of which 4 kept none, 2 one, 1 two, 3 all; and five with one, all kept.
    rounds = Counter({(3, 0): 4, (3, 1): 2, (3, 2): 1, (3, 3): 3, (1, 1): 5})
    assert acceptance_of(rounds) == (round(11 / 15, 3), round(4 / 6, 3), 0.75)
    assert acceptance_of(Counter({(3, 0): 4})) == (0.0,)
    assert acceptance_of(Counter()) == ()
