"""Segments of random windows, as recurrent layers are given them."""

from random import Random

from deployments.lm.cache.layout import SCRATCH_STATE

WAITING, ROWS, STATES = 5, 8, 6
EMPTY = STATES - 1

type Segment = tuple[int, int, int, int]


def random_segments(random: Random) -> list[Segment]:
    """Of up to three sequences: rows of earlier drafts, rows that stay in one or two pieces, and drafts."""
    found: list[Segment] = []
    row, waiting = WAITING, 0
    for state in random.sample([1, 2, 3], k=random.randint(1, 3)):
        read = random.choice([state, EMPTY])
        if replayed := random.randint(0, min(2, WAITING - waiting)):
            found.append((waiting, replayed, read, state))
            read, waiting = state, waiting + replayed
        for count, write in ((random.randint(1, 2), 4), (1, state), (1, SCRATCH_STATE)):
            if row + count > WAITING + ROWS or (write == 4 and random.random() < 0.5):
                continue
            found.append((row, count, read, write))
            row, read = row + count, (write or read)
    return found
