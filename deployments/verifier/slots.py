"""A slot: one request in the batch, what it has been told and what it has cost."""

from collections import Counter
from dataclasses import dataclass, field

from deployments.messages.generation import Decline, FinishReason, GenerateRequest, GenerationStatistics
from deployments.verifier.backoff import BackOff
from deployments.verifier.history import History


@dataclass(kw_only=True)
class Tally:
    """What speculation did for one request.

    Attributes:
        rounds: windows by (drafts given, drafts accepted).
    """

    rounds: Counter[tuple[int, int]] = field(default_factory=Counter)
    declined: Counter[Decline] = field(default_factory=Counter)
    draft_kind: str | None = None

    def matrix(self) -> tuple[tuple[int, ...], ...]:
        """`matrix[d][a]`: windows with `d` drafts of which `a` were accepted."""
        longest = max((drafts for drafts, _ in self.rounds), default=-1)
        return tuple(tuple(self.rounds[(d, a)] for a in range(d + 1)) for d in range(longest + 1))


@dataclass(kw_only=True)
class SlotState:
    """Where a slot's recurrent state is.

    Attributes:
        read: the state that the slot's next row reads; the empty one at the beginning, perhaps another's after that.
        write: the slot's own.
        pending: accepted drafts that the state has not seen yet.
        goals: numbers of first pages after which the state is left behind,
        beyond: as it is after every page from this number on; `None` leaves nothing behind.
        left: what was left behind and cannot be found yet: number of pages, and the state.
        newest: the key of the state left behind last, where it lies in the reply.
    """

    read: int
    write: int
    pending: int = 0
    goals: set[int] = field(default_factory=set)
    beyond: int | None = None
    left: list[tuple[int, int]] = field(default_factory=list)
    newest: bytes | None = None


@dataclass(kw_only=True)
class Slot:
    """The state of one request in the batch.

    Attributes:
        index: its place in the batch; a request that waits has none.
        tokens: the accepted sequence, prompt first.
        pages: the slot's pages, in order of position.
        admitted_at, first_token_at: seconds on the engine's clock; a preempted request keeps its first admission.
        seniority: who comes first, the smaller the sooner.
        expires_at: when a request that has not had a slot yet gives up.
        cached: positions whose keys and values are in the cache; the last accepted token's never are.
        keys: what the prefix cache calls the first pages.
        known: how many of the first pages are in the prefix cache.
        reused: positions found in the cache instead of being computed, before the first preemption.
        preemptions: how often the request lost its slot.
        accepted: drafts kept in the last window.
        history: `tokens` once more, as the sampler's penalties want them.
        state: `None` without a place in the batch, and in networks without recurrent layers.
    """

    index: int
    request: GenerateRequest
    tokens: list[int]
    pages: tuple[int, ...]
    admitted_at: float
    seniority: tuple[float, int] = (0.0, 0)
    expires_at: float | None = None
    cached: int = 0
    keys: list[bytes] = field(default_factory=list)
    known: int = 0
    reused: int = 0
    preemptions: int = 0
    accepted: int = 0
    first_token_at: float | None = None
    backoff: BackOff = field(default_factory=BackOff)
    tally: Tally = field(default_factory=Tally)
    history: History = field(default_factory=History)
    state: SlotState | None = None

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def remaining(self) -> int:
        return self.request.max_tokens - self.generated

    @property
    def is_decoding(self) -> bool:
        """Whether the reply has begun and only the last accepted token is missing from the cache."""
        return self.generated > 0 and self.cached == len(self.tokens) - 1

    @property
    def missing(self) -> int:
        """How many rows must run before the slot decodes: the prompt; or, after a preemption, all but the last token,
        whose row is the first one that decodes again."""
        return len(self.tokens) - self.cached - (self.generated > 0)

    def is_expired(self, *, now: float) -> bool:
        """Whether the request waited for its first slot until after its deadline."""
        return self.expires_at is not None and now >= self.expires_at and not self.preemptions

    def extend(self, draws: tuple[int, ...], /) -> tuple[tuple[int, ...], FinishReason | None]:
        """Appends what a window drew; returns the tokens that are part of the reply, and why it ended if it did."""
        fresh: list[int] = []
        for token in draws:
            if self.request.ends_at(token):
                return tuple(fresh), FinishReason.STOP
            fresh.append(token)
            self.tokens.append(token)
            if self.remaining == 0:
                return tuple(fresh), FinishReason.LENGTH
        return tuple(fresh), None

    def statistics(self, *, now: float) -> GenerationStatistics:
        """What the request has cost so far."""
        first = self.first_token_at if self.first_token_at is not None else now
        return GenerationStatistics(
            prompt_n=len(self.request.prompt_ids) - self.reused,
            cache_n=self.reused,
            prompt_ms=1e3 * (first - self.admitted_at),
            predicted_n=self.generated,
            predicted_ms=1e3 * (now - first),
            draft_kind=self.tally.draft_kind,
            rounds=self.tally.matrix(),
            declined={reason.value: count for reason, count in self.tally.declined.items()},
        )
