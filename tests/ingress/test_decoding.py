"""Text comes out whole and the same, however its tokens were grouped."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.ingress.decoding import IncrementalDecoder, StopStrings
from tests.ingress.fakes import END, byte_table

_SMALL = st.text(alphabet="ab\n", max_size=40)
_STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), min_size=1, max_size=4)


@given(st.text())
def test_a_text_survives_being_cut_into_bytes(text: str) -> None:
    decoder = IncrementalDecoder(table=byte_table())
    pieces = [decoder.decode(byte) for byte in text.encode("utf-8", "surrogatepass")]
    expected = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    assert "".join(pieces) + decoder.flush() == expected


def test_no_piece_holds_part_of_a_character() -> None:
    decoder = IncrementalDecoder(table=byte_table())
    assert [decoder.decode(byte) for byte in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]


def test_a_control_token_has_no_text_and_does_not_disturb_a_character() -> None:
    decoder = IncrementalDecoder(table=byte_table())
    first, second = "é".encode()
    assert [decoder.decode(first), decoder.decode(END), decoder.decode(second)] == ["", "", "é"]


def test_a_reply_that_ends_inside_a_character_says_so() -> None:
    decoder = IncrementalDecoder(table=byte_table())
    assert decoder.decode("🙂".encode()[0]) == ""
    assert decoder.flush() == "\N{REPLACEMENT CHARACTER}"


def _expected(text: str, /, *, stops: list[str]) -> tuple[str, bool]:
    """The first to be completed wins, and of those completed together the longest."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return (text[: min(found)[1]], True) if found else (text, False)


@given(text=_SMALL, stops=_STOPS, cuts=st.lists(st.integers(0, 40)))
def test_stop_strings_agree_with_a_search_of_the_whole_text(text: str, stops: list[str], cuts: list[int]) -> None:
    search = StopStrings(stops=tuple(stops))
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    given_out = "".join(search.feed(text[a:b]) for a, b in pairwise(borders))
    assert (given_out + search.flush(), search.matched) == _expected(text, stops=stops)


@given(text=_SMALL, stops=_STOPS)
def test_no_more_is_held_back_than_could_begin_a_stop_string(text: str, stops: list[str]) -> None:
    search = StopStrings(stops=tuple(stops))
    given_out = search.feed(text)
    if not search.matched:
        held = text[len(given_out) :]
        assert text.startswith(given_out)
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert StopStrings(stops=()).feed("anything") == "anything"


@pytest.mark.parametrize("stop", ["\n\n", "a" * 500 + "b"])
def test_a_long_text_costs_in_proportion_to_its_length(stop: str) -> None:
    def seconds(length: int) -> float:
        search = StopStrings(stops=(stop,))
        began = time.perf_counter()
        for _ in range(length):
            search.feed("aaaa")
        return time.perf_counter() - began

    short = min(seconds(1_000) for _ in range(3))
    long = min(seconds(10_000) for _ in range(3))
    # Quadratic work would be 100 times as long.
    assert long < 40 * short


@given(text=_SMALL, stops=_STOPS, start=st.integers(0, 40))
def test_strings_completed_too_early_are_text_like_any_other(text: str, stops: list[str], start: int) -> None:
    """What began early and is completed in time counts."""
    search = StopStrings(stops=tuple(stops))
    given_out = search.feed(text[:start], may_end=False) + search.feed(text[start:])
    ends = [(end, -len(stop)) for stop in stops for end in range(start + 1, len(text) + 1) if text[:end].endswith(stop)]
    expected = text[: min(ends)[0] + min(ends)[1]] if ends else text

    assert (given_out + search.flush(), search.matched) == (expected, bool(ends))
