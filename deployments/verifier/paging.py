"""The pages of slots: given at admission, grown while a reply grows, shared where the content is the same.

Of a slot's pages the first `known` ones are in the prefix cache. Whoever holds such a page holds all before it, and
gives them back last page first, so a page is never evicted before those that can only be found through it. In networks
with recurrent layers pages are only of use as far as a state was left behind at the end of one. Knows slots and pages;
not who is admitted, nor when.
"""

from collections.abc import Sequence

from deployments.lm.cache.pages import PageAllocator
from deployments.lm.cache.prefix import PrefixCache
from deployments.verifier.slots import Slot
from deployments.verifier.states import Segment, States


class Paging:
    """Host only; not thread-safe.

    Args:
        prefix: `None` shares nothing.
        states: of recurrent layers; `None` where there are none.
    """

    def __init__(self, allocator: PageAllocator, *, prefix: PrefixCache | None, states: States | None = None) -> None:
        self._allocator = allocator
        self._prefix = prefix
        self._states = states
        self._size = allocator.page_size
        if prefix is not None and states is not None:
            prefix.when_forgotten(states.forget)

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
        cached = self._found(slot, first=0)
        found = self._usable(slot, cached, first=0)
        self._allocator.hold(found)
        wanted = self._allocator.pages_for(positions) - len(found)
        if wanted + spare > self._allocator.free:
            self._allocator.give_back(reversed(found))
            return False
        slot.pages = (*found, *self._allocator.take(wanted))
        slot.known = len(found)
        slot.cached = len(found) * self._size
        if self._states is not None:
            self._states.enter(slot, key=slot.keys[len(found) - 1] if found else None)
            self._aim(slot, parted=len(cached))
        self._count_reused(slot, positions=slot.cached)
        return True

    def extend(self, slot: Slot, /, *, positions: int) -> int:
        """Gives a slot more pages, up to so many positions and as far as there are any; returns how many it has."""
        wanted = self._allocator.pages_for(positions) - len(slot.pages)
        if wanted > 0:
            slot.pages += self._allocator.take(min(wanted, self._allocator.free))
        return len(slot.pages) * self._size

    def extend_all(self, positions: Sequence[tuple[Slot, int]], /) -> bool:
        """Gives each slot pages for so many positions; or none of them any, where there are too few, and says so."""
        wanted = sum(max(self._allocator.pages_for(count) - len(slot.pages), 0) for slot, count in positions)
        if wanted > self._allocator.free:
            return False
        for slot, count in positions:
            self.extend(slot, positions=count)
        return True

    def may_grow(self, slot: Slot, /) -> bool:
        """Whether the slot has fewer pages than its whole reply takes."""
        return len(slot.pages) < self._allocator.pages_for(len(slot.request.prompt_ids) + slot.request.max_tokens)

    def catch_up(self, slot: Slot, /) -> None:
        """Takes over pages that another slot has completed meanwhile, instead of computing them again."""
        cached = self._found(slot, first=slot.known)
        found = self._usable(slot, cached, first=slot.known)
        self._aim(slot, parted=slot.known + len(cached))
        if not found:
            return
        if self._states is not None:
            self._states.begin_from(slot, key=slot.keys[slot.known + len(found) - 1])
        own = slot.pages[slot.known : slot.known + len(found)]
        self._allocator.hold(found)
        self._allocator.give_back(reversed(own))
        slot.pages = (*slot.pages[: slot.known], *found, *slot.pages[slot.known + len(found) :])
        slot.known += len(found)
        self._count_reused(slot, positions=slot.known * self._size - slot.cached)
        slot.cached = slot.known * self._size

    def next_key(self, slot: Slot, /) -> bytes | None:
        """The key of what the slot completes next and others can share: a page, or the last one before its tokens' end,
        after which its state is left; `None` for the tokens after that, which nobody can share."""
        if self._prefix is None or not slot.request.cache_prompt or slot.known >= self._shareable(slot):
            return None
        if self._states is not None and not self._states.can_leave:
            return None
        page = slot.known + 1 if self._states is None else self._shareable(slot)
        self._prefix.extend_keys(slot.keys, tokens=slot.tokens, pages=page)
        return slot.keys[page - 1]

    def segments(self, slot: Slot, /, *, rows: int, drafts: int) -> tuple[Segment, ...]:
        """How a slot's next rows, of which the last ones are drafts, run through recurrent layers, if there are any."""
        return () if self._states is None else self._states.segments(slot, rows=rows, drafts=drafts)

    def settle(self, slot: Slot, /, *, kept: int = 0) -> None:
        """After a window: makes what the slot has completed known; `kept` is how many drafts became tokens."""
        self._settle_pages(slot)
        if self._states is not None:
            self._states.settle(slot, kept=kept)

    def _settle_pages(self, slot: Slot) -> None:
        """Where the content of a page is known already, the slot takes that page."""
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
        if self._states is not None:
            self._states.leave(slot)
        slot.pages = ()
        slot.known = slot.cached = 0

    def forget_all(self) -> None:
        """Nothing that is cached can be trusted any more."""
        if self._prefix is not None:
            self._prefix.clear()
        if self._states is not None:
            self._states.forget_all()

    def check_integrity(self, slots: tuple[Slot, ...], /) -> None:
        """Raises `AssertionError` unless pages, holders and keys agree."""
        self._allocator.check_integrity([slot.pages for slot in slots])
        if self._prefix is not None:
            self._prefix.check_integrity()
        if self._states is not None:
            self._states.check_integrity(slots, is_known=self._is_known)
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

    def _usable(self, slot: Slot, found: list[int], *, first: int) -> list[int]:
        """As many of these pages, the slot's next ones, as it can go on from."""
        if self._states is None:
            return found
        return found[: self._states.deepest(slot.keys[first : first + len(found)])]

    def _aim(self, slot: Slot, *, parted: int) -> None:
        """Says where a slot leaves its state behind, if anybody may find it.

        Args:
            parted: after so many pages the slot's tokens are no longer those of pages that are cached.
        """
        if slot.state is None or self._prefix is None or not slot.request.cache_prompt:
            return
        last = self._shareable(slot)
        slot.state.goals = {last, parted}
        slot.state.beyond = last + 1

    def _is_known(self, key: bytes) -> bool:
        return self._prefix is not None and self._prefix.find(key) is not None

    def _count_reused(self, slot: Slot, *, positions: int) -> None:
        # What a preempted request finds again it may have computed itself.
        if not slot.preemptions:
            slot.reused += positions
