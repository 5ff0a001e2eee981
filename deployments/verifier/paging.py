"""The pages of slots: given at admission, grown while a reply grows, shared where the content is the same.

Of a slot's pages the first `known` ones are in the prefix cache. Whoever holds such a page holds all before it, and
gives them back last page first, so a page is never evicted before those that can only be found through it. Knows slots
and pages; not who is admitted, nor when.
"""

from deployments.lm.cache.pages import PageAllocator
from deployments.lm.cache.prefix import PrefixCache
from deployments.verifier.slots import Slot


class Paging:
    """Host only; not thread-safe.

    Args:
        prefix: `None` shares nothing.
    """

    def __init__(self, allocator: PageAllocator, *, prefix: PrefixCache | None) -> None:
        self._allocator = allocator
        self._prefix = prefix
        self._size = allocator.page_size

    @property
    def in_use(self) -> int:
        return self._allocator.in_use

    @property
    def kept(self) -> int:
        return self._allocator.kept

    @property
    def evictions(self) -> int:
        return self._allocator.evictions

    @property
    def capacity(self) -> int:
        """Positions that all pages together hold."""
        return self._allocator.capacity * self._size

    def enter(self, slot: Slot, /, *, positions: int, spare: int) -> bool:
        """Gives a slot without pages enough for so many positions, cached ones first; or nothing, and says so.

        Args:
            spare: how many pages must be left for others.
        """
        found = self._found(slot, first=0)
        self._allocator.hold(found)
        wanted = self._allocator.pages_for(positions) - len(found)
        if wanted + spare > self._allocator.free:
            self._allocator.give_back(reversed(found))
            return False
        slot.pages = (*found, *self._allocator.take(wanted))
        slot.known = len(found)
        slot.cached = len(found) * self._size
        self._count_reused(slot, positions=slot.cached)
        return True

    def extend(self, slot: Slot, /, *, positions: int) -> int:
        """Gives a slot more pages, up to so many positions and as far as there are any; returns how many it has."""
        wanted = self._allocator.pages_for(positions) - len(slot.pages)
        if wanted > 0:
            slot.pages += self._allocator.take(min(wanted, self._allocator.free))
        return len(slot.pages) * self._size

    def may_grow(self, slot: Slot, /) -> bool:
        """Whether the slot has fewer pages than its whole reply takes."""
        return len(slot.pages) < self._allocator.pages_for(len(slot.request.prompt_ids) + slot.request.max_tokens)

    def catch_up(self, slot: Slot, /) -> None:
        """Takes over pages that another slot has completed meanwhile, instead of computing them again."""
        found = self._found(slot, first=slot.known)
        if not found:
            return
        own = slot.pages[slot.known : slot.known + len(found)]
        self._allocator.hold(found)
        self._allocator.give_back(reversed(own))
        slot.pages = (*slot.pages[: slot.known], *found, *slot.pages[slot.known + len(found) :])
        slot.known += len(found)
        self._count_reused(slot, positions=slot.known * self._size - slot.cached)
        slot.cached = slot.known * self._size

    def next_key(self, slot: Slot, /) -> bytes | None:
        """The key of the page the slot computes next; `None` for the last of its tokens, which nobody can share."""
        if self._prefix is None or not slot.request.cache_prompt or slot.known >= self._shareable(slot):
            return None
        self._prefix.extend_keys(slot.keys, tokens=slot.tokens, pages=slot.known + 1)
        return slot.keys[slot.known]

    def settle(self, slot: Slot, /) -> None:
        """Makes the slot's completed pages known; where the content is known already, the slot takes that page."""
        prefix = self._prefix
        if prefix is None or not slot.request.cache_prompt:
            return
        whole = min(slot.cached, len(slot.tokens)) // self._size
        if whole <= slot.known:
            return
        prefix.extend_keys(slot.keys, tokens=slot.tokens, pages=whole)
        pages = list(slot.pages)
        for number in range(slot.known, whole):
            known = prefix.add(slot.keys[number], page=pages[number])
            if known != pages[number]:
                self._allocator.hold((known,))
                self._allocator.give_back((pages[number],))
                pages[number] = known
        slot.pages = tuple(pages)
        slot.known = whole

    def leave(self, slot: Slot, /) -> None:
        """Takes all pages away; what they hold can still be found."""
        self._allocator.give_back(reversed(slot.pages))
        slot.pages = ()
        slot.known = slot.cached = 0

    def forget_all(self) -> None:
        """Nothing that is cached can be trusted any more."""
        if self._prefix is not None:
            self._prefix.clear()

    def check_integrity(self, slots: tuple[Slot, ...], /) -> None:
        """Raises `AssertionError` unless pages, holders and keys agree."""
        self._allocator.check_integrity([slot.pages for slot in slots])
        if self._prefix is not None:
            self._prefix.check_integrity()
        for slot in slots:
            if slot.cached > len(slot.pages) * self._size:
                raise AssertionError(f"slot {slot.index} has more cached positions than its pages hold")
            if slot.known * self._size > slot.cached:
                raise AssertionError(f"slot {slot.index} shares a page that is not complete")
            keys = slot.keys[: slot.known]
            if self._prefix is not None and [self._prefix.find(key) for key in keys] != list(slot.pages[: len(keys)]):
                raise AssertionError(f"slot {slot.index} holds pages that are not the known ones")

    def _shareable(self, slot: Slot) -> int:
        """Whole pages before the last token, whose row must run so that there is something to draw from."""
        return (len(slot.tokens) - 1) // self._size

    def _found(self, slot: Slot, *, first: int) -> list[int]:
        found: list[int] = []
        if self._prefix is None or not slot.request.cache_prompt:
            return found
        for number in range(first, self._shareable(slot)):
            self._prefix.extend_keys(slot.keys, tokens=slot.tokens, pages=number + 1)
            page = self._prefix.find(slot.keys[number])
            if page is None:
                break
            found.append(page)
        return found

    def _count_reused(self, slot: Slot, *, positions: int) -> None:
        # What a preempted request finds again it may have computed itself.
        if not slot.preemptions:
            slot.reused += positions
