"""From compiled programs to windows: which programs a window runs, what it takes, and how fast that is said to be."""

from collections.abc import Mapping
from functools import cache

from deployments.verifier.ahead import CompiledProgram, FailedProgram
from deployments.verifier.blueprint import ProgramKey, Sizes
from deployments.verifier.window import Rung
from serve_app.compiling.chips import Slice
from serve_app.compiling.estimate import LENGTHS, Speed, Window, time_of
from serve_app.compiling.hlo import Module, parse_module
from serve_app.compiling.work import Load, Work, work_of

type Programs = Mapping[ProgramKey, CompiledProgram | FailedProgram]


class Windows:
    """Windows of programs that were compiled for a slice.

    Args:
        position: where every slot is in its context.
        draft_k: the most drafts of a slot.
    """

    def __init__(self, programs: Programs, *, sizes: Sizes, on: Slice, position: int, draft_k: int) -> None:
        self.sizes = sizes
        self.draft_k = draft_k
        self.modules = {
            key: parse_module(program.hlo_text)
            for key, program in programs.items()
            if isinstance(program, CompiledProgram)
        }
        self._slice = on
        self._position = position
        self._of = cache(self._window)

    def of_rung(self, rung: Rung, /) -> Window | None:
        """All slots in a window of this rung, with as many rows each as it has room for; `None` if one of its programs
        was not compiled."""
        slots = min(self.sizes.slots, rung.rows)
        rows = rung.rows // slots
        # Rows beyond all drafts are prompts', which emit nothing.
        return self._of(rung, slots, rows, slots * min(rows, self.draft_k + 1))

    def of(self, *, slots: int, drafts: int) -> Window | None:
        """So many slots with so many drafts each, in the rung that the scheduler would take."""
        rows = drafts + 1
        load = Load(slots=slots, rows=rows, position=self._position)
        rung = self.sizes.ladder.rung_for(rows=slots * rows, tiles=load.tiles)
        return self._of(rung, slots, rows, slots * rows)

    def speeds(self) -> tuple[Speed, ...]:
        """Plain decoding first, then with all drafts every acceptance length that they can reach; none where programs
        are missing."""
        lengths = [length for length in LENGTHS if length <= self.draft_k + 1] if self.draft_k else []
        found = (self._speed(drafts=drafts, tokens=n) for drafts, n in [(0, 1), *((self.draft_k, n) for n in lengths)])
        return tuple(speed for speed in found if speed is not None)

    def _speed(self, *, drafts: int, tokens: int) -> Speed | None:
        slots = self.sizes.slots
        # What a window has no room for is not drafted.
        room = self.sizes.ladder.widest.rows // slots - 1
        one, every = self.of(slots=1, drafts=drafts), self.of(slots=slots, drafts=min(drafts, room))
        if one is None or every is None:
            return None
        together = slots * min(tokens, room + 1) / every.time.seconds
        return Speed(tokens=tokens, drafts=drafts, one=tokens / one.time.seconds, all=together)

    def _window(self, rung: Rung, slots: int, rows: int, emitting: int) -> Window | None:
        emits = self.sizes.ladder.emits_for(emitting)
        body, emit = self.modules.get(rung), self.modules.get(emits)
        if body is None or emit is None:
            return None
        load = Load(slots=slots, rows=rows, position=self._position)
        works = [self._work(module, load=load) for module in (body, emit)]
        times = [time_of(work, on=self._slice) for work in works]
        return Window(rung=rung, emits=emits, load=load, body=works[0], emit=works[1], time=times[0] + times[1])

    def _work(self, module: Module, *, load: Load) -> Work:
        return work_of(module, load=load, page_size=self.sizes.shape.page_size)
