"""How many rows of a window prompts get, and which prompt gets how many. Pure arithmetic.

While somebody decodes, a window is widened for prompts only so far: a window's time is every stream's pause. Half of
the rows go to the prompt that came first, so that none starves; the rest to those that are done soonest, so that a
short prompt does not wait for a long one, and prompts of one length finish one after the other, not all at the end.
"""

from collections.abc import Sequence

from deployments.lm.attention import TILE_ROWS


def prompt_rows(*, decoding: int, most: int, rungs: Sequence[int]) -> int:
    """The rows prompts may have beside `decoding` rows: at most `most`, at least half of that where a rung is so wide.

    Args:
        rungs: row counts of windows, rising. Rows up to the next one are free, rows beyond it cost a wider window.
    """
    enough = decoding + -(-most // 2)
    width = next((rows for rows in rungs if rows >= enough), rungs[-1])
    return max(min(most, width - decoding), 0)


def share(needs: Sequence[int], /, *, rows: int) -> list[int]:
    """So many of `rows` for each prompt; `needs` is what each still has to run, who came first coming first."""
    if not needs:
        return []
    half = max(-(-rows // 2 // TILE_ROWS) * TILE_ROWS, 1)
    given = [0] * len(needs)
    given[0] = min(needs[0], max(min(half, rows), rows - sum(needs[1:])))
    left = rows - given[0]
    for place in sorted(range(1, len(needs)), key=lambda place: (needs[place], place)):
        given[place] = min(needs[place], left)
        left -= given[place]
    return given
