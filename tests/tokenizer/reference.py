"""SentencePiece's own way to join neighbours by score, written plainly: what the fast one is held against."""

import heapq
from collections.abc import Mapping


def joined_by_scores(text: str, /, *, scores: Mapping[str, float]) -> list[str]:
    """The algorithm of SentencePiece's `bpe_model.cc`: the best score first, of equal ones the leftmost."""
    parts = list(text)
    following = [*range(1, len(parts)), -1]
    before = list(range(-1, len(parts) - 1))
    queue: list[tuple[float, int, int, str]] = []

    def consider(left: int, right: int) -> None:
        if left >= 0 and right >= 0 and (both := parts[left] + parts[right]) in scores:
            heapq.heappush(queue, (-scores[both], left, right, both))

    for index in range(1, len(parts)):
        consider(index - 1, index)
    while queue:
        _, left, right, both = heapq.heappop(queue)
        if not parts[left] or not parts[right] or parts[left] + parts[right] != both:
            continue
        parts[left], parts[right] = both, ""
        following[left] = following[right]
        if following[left] >= 0:
            before[following[left]] = left
        consider(before[left], left)
        consider(left, following[left])
    return [part for part in parts if part]
