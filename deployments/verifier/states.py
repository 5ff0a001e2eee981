"""The recurrent states of slots: which one the next row reads, where it writes, and what is left behind for others.

A state is handed out, held, kept and found like a page. A slot always has one of its own to write to. Where a state is
worth finding again, at the end of a whole page, the slot leaves the one it wrote there and goes on in another: nothing
is copied. Whoever comes to the same tokens reads it and writes to its own. Left behind are the state at the last page
border before a prompt's end, the one where prompts that are cached part (Pan et al., 2024, "Marconi"), and the newest
one of a reply. Knows slots and states; not pages, nor who is admitted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from deployments.lm.cache.layout import SCRATCH_STATE
from deployments.lm.cache.pages import PageAllocator
from deployments.lm.cache.prefix import PrefixCache
from deployments.verifier.slots import Slot, SlotState

# Of one slot in one window.
MOST_LEFT = 2
# Replayed rows, the prompt's or the last token's, and drafts.
MOST_SEGMENTS = 3 + 2 * MOST_LEFT


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Consecutive rows that run through one state.

    Attributes:
        read, write: the state before the first row, and where the one after the last goes.
        replayed: the first one's place among the pending rows; `None` for rows of the window's own.
        kept: where what goes into the first one is kept, and so on; `None` for rows that stay anyway.
    """

    count: int
    read: int
    write: int
    replayed: int | None = None
    kept: int | None = None


@dataclass(frozen=True, kw_only=True)
class StateRoom:
    """How many states and pending rows there are.

    Attributes:
        slots: each has a state of its own,
        drafts: and so many pending rows.
        kept: states for what is left behind.
    """

    slots: int
    drafts: int
    kept: int

    @property
    def states(self) -> int:
        """With the scratch state and the empty one."""
        return self.slots + self.kept + 2

    @property
    def empty(self) -> int:
        """The empty state."""
        return self.states - 1

    @property
    def pending(self) -> int:
        """With the place for rows that stay anyway."""
        return self.slots * self.drafts + 1

    @property
    def segments(self) -> int:
        """The most segments of a window."""
        return self.slots * MOST_SEGMENTS


class States:
    """Host only; not thread-safe.

    Args:
        page_size: positions between places where a state may be left.
    """

    def __init__(self, room: StateRoom, *, page_size: int) -> None:
        self._room = room
        self._size = page_size
        self._allocator = PageAllocator(room.states - 1, page_size=1)
        self._found = PrefixCache(self._allocator, root=b"")
        self._active = 0

    @property
    def kept(self) -> int:
        """How many states can be found."""
        return len(self._found)

    def deepest(self, keys: Sequence[bytes], /) -> int:
        """How many of the first pages, which have these keys, end in a state that a slot may begin from; 0 if none."""
        for count in range(len(keys), 0, -1):
            state = self._found.find(keys[count - 1])
            if state is not None and (self._spare or self._allocator.is_held(state)):
                return count
        return 0

    def enter(self, slot: Slot, /, *, key: bytes | None) -> None:
        """Gives a slot a state of its own, to begin from the one under `key` or from nothing."""
        read = self._room.empty if key is None else self._hold(key)
        (write,) = self._allocator.take(1)
        self._active += 1
        slot.state = SlotState(read=read, write=write)

    def begin_from(self, slot: Slot, /, *, key: bytes) -> None:
        """Lets a slot's next row read the state under `key`, which is there."""
        own, state = _own(slot), self._hold(key)
        self._give_back_read(own)
        own.read = state

    def leave(self, slot: Slot, /) -> None:
        """Takes a slot's states away; what is known of them can still be found."""
        own = _own(slot)
        self._give_back_read(own)
        self._allocator.give_back([own.write, *(state for _, state in own.left)])
        self._active -= 1
        slot.state = None

    def segments(self, slot: Slot, /, *, rows: int, drafts: int) -> tuple[Segment, ...]:
        """How a slot's next rows run, of which the last ones are drafts; and before them those that were accepted."""
        own = _own(slot)
        place = slot.index * self._room.drafts
        seen = _Seen(count=slot.cached - own.pending, first=slot.cached - own.pending, place=place)
        known = slot.cached + rows - drafts
        found: list[Segment] = []
        for page in self._borders(own, first=seen.count, last=known):
            found += self._advance(own, seen=seen, cached=slot.cached, end=page * self._size)
            self._leave_behind(own, pages=page)
        found += self._advance(own, seen=seen, cached=slot.cached, end=known)
        if drafts:
            found.append(Segment(count=drafts, read=own.read, write=SCRATCH_STATE, kept=place))
        return tuple(found)

    def settle(self, slot: Slot, /, *, kept: int) -> None:
        """After a window of which so many drafts were kept, and once the slot's whole pages are known: what it left
        behind can be found."""
        own = _own(slot)
        own.pending = kept
        for pages, state in own.left:
            key = slot.keys[pages - 1]
            self._found.add(key, page=state)
            self._allocator.give_back((state,))
            if own.beyond is not None and pages >= own.beyond:
                if own.newest is not None:
                    self._found.drop(own.newest)
                own.newest = key
        own.left.clear()

    def forget(self, key: bytes, /) -> None:
        """Nobody can come to the state under this key any more, if there is one."""
        self._found.drop(key)

    def forget_all(self) -> None:
        """No state can be trusted any more."""
        self._found.clear()

    def check_integrity(self, slots: Iterable[Slot], /, *, is_known: Callable[[bytes], bool]) -> None:
        """Raises `AssertionError` unless every state is held as often as it should be, and can be come to."""
        owned: list[tuple[int, ...]] = []
        for slot in slots:
            own = _own(slot)
            owned += [(own.write,), tuple(state for _, state in own.left), self._held_to_read(own)]
            if not 0 <= own.pending <= min(slot.cached, self._room.drafts):
                raise AssertionError(f"slot {slot.index} has {own.pending} pending rows of {slot.cached} cached ones")
        self._allocator.check_integrity(owned)
        self._found.check_integrity()
        if self._spare < 0:
            raise AssertionError("not every slot can have a state")
        if not all(is_known(key) for key in self._found.keys):
            raise AssertionError("a state is kept whose pages cannot be found")

    @property
    def can_leave(self) -> bool:
        """Whether a slot could leave a state behind now."""
        return self._spare > 0

    @property
    def _spare(self) -> int:
        """States that could be taken when every other slot has one of its own."""
        return self._allocator.free - (self._room.slots - self._active)

    def _hold(self, key: bytes) -> int:
        state = self._found.find(key)
        if state is None:
            raise AssertionError("a slot begins from a state that is not kept")
        self._allocator.hold((state,))
        return state

    def _held_to_read(self, own: SlotState) -> tuple[int, ...]:
        return () if own.read in (own.write, self._room.empty) else (own.read,)

    def _give_back_read(self, own: SlotState) -> None:
        self._allocator.give_back(self._held_to_read(own))

    def _borders(self, own: SlotState, *, first: int, last: int) -> list[int]:
        """After which pages the state is left behind, on its way between two positions."""
        pages = range(first // self._size + 1, last // self._size + 1)
        wanted = [page for page in pages if page in own.goals or (own.beyond is not None and page >= own.beyond)]
        return wanted[-MOST_LEFT:]

    def _advance(self, own: SlotState, *, seen: "_Seen", cached: int, end: int) -> Iterator[Segment]:
        """On to a position: first by rows that are run once more, then by new ones."""
        for stop, is_replayed in ((min(end, cached), True), (end, False)):
            count = stop - seen.count
            if count > 0:
                replayed = seen.place + seen.count - seen.first if is_replayed else None
                yield Segment(count=count, read=own.read, write=own.write, replayed=replayed)
                # Given back before it is read: whatever is written there next is written after.
                self._give_back_read(own)
                own.read = own.write
                seen.count = stop

    def _leave_behind(self, own: SlotState, *, pages: int) -> None:
        if self._spare < 1:
            return
        (write,) = self._allocator.take(1)
        own.left.append((pages, own.write))
        self._allocator.hold((own.write,))
        own.write = write


@dataclass(kw_only=True)
class _Seen:
    """How far a state is on its way: positions now and at first, and the place of its first pending row."""

    count: int
    first: int
    place: int


def _own(slot: Slot) -> SlotState:
    if slot.state is None:
        raise AssertionError(f"slot {slot.index} has no state")
    return slot.state
