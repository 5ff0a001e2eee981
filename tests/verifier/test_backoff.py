"""The back-off rules one by one, and one long trace."""

import pytest

from deployments.verifier.backoff import BackOff


def run(state: BackOff, *windows: tuple[bool, int]) -> BackOff:
    for speculated, kept in windows:
        state = state.after_window(speculated=speculated, kept=kept)
    return state


MISS = (True, 0)
HIT = (True, 2)
PLAIN = (False, 0)


def test_four_misses_in_a_row_begin_a_wait_of_sixteen() -> None:
    assert run(BackOff(), *[MISS] * 3).may_guess
    state = run(BackOff(), *[MISS] * 4)
    assert not state.may_guess
    assert not run(state, *[MISS] * 15).may_guess
    assert run(state, *[MISS] * 16).may_guess


def test_a_kept_guess_breaks_the_row() -> None:
    assert run(BackOff(), *[MISS] * 3, HIT, *[MISS] * 3).may_guess
    assert not run(BackOff(), *[MISS] * 3, HIT, *[MISS] * 4).may_guess


def test_windows_without_any_guess_count_towards_waits_only() -> None:
    assert run(BackOff(), *[PLAIN] * 100, *[MISS] * 3).may_guess
    assert not run(BackOff(), MISS, MISS, *[PLAIN] * 100, MISS, MISS).may_guess, "nor do they break the row"
    assert run(BackOff(), *[MISS] * 4, *[PLAIN] * 16).may_guess


def test_windows_of_others_count_towards_the_wait() -> None:
    assert run(BackOff(), *[MISS] * 4, *[MISS, PLAIN] * 8).may_guess


@pytest.mark.parametrize(("rows", "wait"), [(1, 16), (2, 32), (3, 64), (4, 128), (5, 256), (6, 256), (9, 256)])
def test_each_further_row_of_misses_doubles_the_wait_up_to_256(rows: int, wait: int) -> None:
    state = BackOff()
    for _ in range(rows - 1):
        state = run(state, *[MISS] * 4)
        while not state.may_guess:
            state = run(state, PLAIN)
    state = run(state, *[MISS] * 4)
    assert not run(state, *[PLAIN] * (wait - 1)).may_guess
    assert run(state, *[PLAIN] * wait).may_guess


def test_a_kept_guess_sets_the_wait_back_to_sixteen() -> None:
    state = run(BackOff(), *[MISS] * 4, *[PLAIN] * 16, *[MISS] * 4, *[PLAIN] * 32, HIT, *[MISS] * 4)
    assert not run(state, *[PLAIN] * 15).may_guess
    assert run(state, *[PLAIN] * 16).may_guess


def test_a_kept_guess_while_waiting_changes_nothing() -> None:
    waiting = run(BackOff(), *[MISS] * 4, *[PLAIN] * 16, *[MISS] * 4)
    assert run(waiting, *[HIT] * 5) == run(waiting, *[PLAIN] * 5)
    assert run(waiting, *[HIT] * 32, *[MISS] * 4) == run(waiting, *[PLAIN] * 32, *[MISS] * 4)


def test_after_a_wait_the_row_begins_anew() -> None:
    assert run(BackOff(), *[MISS] * 4, *[PLAIN] * 16, *[MISS] * 3).may_guess


def test_a_long_trace() -> None:
    """(windows, what they are, how many of them the request might guess in)."""
    trace = [
        (3, MISS, 3),
        (1, HIT, 1),
        (4, MISS, 4),  # waits 16
        (10, PLAIN, 0),
        (6, MISS, 0),
        (5, PLAIN, 5),  # free again; nothing to count
        (4, MISS, 4),  # waits 32
        (31, MISS, 0),
        (1, PLAIN, 0),
        (2, MISS, 2),
        (1, HIT, 1),  # back to 16
        (4, MISS, 4),
        (16, PLAIN, 0),
        (4, MISS, 4),  # waits 32
        (32, PLAIN, 0),
        (4, MISS, 4),  # waits 64
        (63, PLAIN, 0),
        (2, PLAIN, 1),
    ]
    state = BackOff()
    for windows, what, expected in trace:
        might = 0
        for _ in range(windows):
            might += state.may_guess
            state = run(state, what)
        assert might == expected
