"""What ingress, tokenizer and verifier say to each other about one reply. Frozen; token ids only, no text, no JAX."""

from enum import StrEnum

import msgspec


class FinishReason(StrEnum):
    """Why a reply ended."""

    STOP = "stop"
    LENGTH = "length"


class Decline(StrEnum):
    """Why a window held no draft for a request."""

    BACKING_OFF = "backing_off"
    DISABLED_BY_OPERATOR = "disabled_by_operator"
    DISABLED_BY_REQUEST = "disabled_by_request"
    DRAFTER_UNREACHABLE = "drafter_unreachable"
    FORGOTTEN = "forgotten"
    INEXACT = "inexact"
    LAST_TOKEN = "last_token"
    LATE = "late"
    LOAD = "load"
    MALFORMED = "malformed"
    NO_GUESS = "no_guess"
    NOT_APPLICABLE = "not_applicable"
    NOT_FASTER = "not_faster"
    NOT_GATED = "not_gated"
    STALE = "stale"
    TOO_MANY_SLOTS = "too_many_slots"


MOST_BIASES = 512
"""The most tokens one request may bias."""

LEAST_REPETITION = 0.01
"""The smallest `repetition_penalty`: much smaller ones are zero in the precision of logits."""

MOST_LOGPROBS = 20
"""The most alternatives a request may ask for per token; OpenAI's limit."""


class SamplingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the target draws a token. The draw at a position depends on these, the seed and the prefix alone.

    Attributes:
        temperature: 0 takes the most likely token.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the most likely tokens up to this probability mass, in (0, 1].
        min_p: drop tokens less likely than this share of the most likely one, in [0, 1].
        seed: 32 bits; the same seed gives the same reply.
        repetition_penalty: divides the logits above 0 of tokens seen in prompt or reply, and multiplies those below.
        presence_penalty: taken from the logit of each token seen in the reply.
        frequency_penalty: the same, as often as it was seen.
        logit_bias: token ids and what is added to their logits; at most `MOST_BIASES`, each id once.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def penalises(self) -> bool:
        """Whether what was said before changes what is likely now."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


class SpeculationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may say about speculation. It changes speed, never the reply."""

    enabled: bool = True
    max_draft: int | None = None


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of one request, ready for the verifier.

    Attributes:
        request_id: unique per choice.
        choice: index among the `n` choices; it is part of the key of every draw.
        max_tokens: at least 1; prompt and reply together must fit the context.
        end_ids: tokens that end the reply and are not part of it.
        min_tokens: no end token is drawn before the reply has so many tokens.
        ignore_eos: end tokens are tokens like any other, but for `min_tokens`.
        logprobs: how many alternatives to report with each token's log-probability; `None` reports neither.
        cache_prompt: whether the prompt may be read from, and left in, the prefix cache; changes speed alone.
        priority: lower is earlier.
        deadline_s: seconds the request may wait for its first slot; `None` waits as long as it takes.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingSettings = SamplingSettings()
    choice: int = 0
    end_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    speculation: SpeculationSettings = SpeculationSettings()
    cache_prompt: bool = True
    priority: int = 0
    deadline_s: float | None = None

    def ends_at(self, token_id: int, /) -> bool:
        """Whether this token ends the reply."""
        return not self.ignore_eos and token_id in self.end_ids


class GenerationStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a reply cost so far, and what speculation did for it.

    Attributes:
        prompt_n: prompt tokens that were computed; with `cache_n`, those found in the cache, it is the whole prompt.
        rounds: `rounds[d][a]` counts windows in which this request had `d` drafts and `a` of them were accepted.
        draft_kind: the drafter that proposed at least one of them; `None` when none did.
        declined: windows without a draft, by reason.
    """

    prompt_n: int = 0
    cache_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    draft_kind: str | None = None
    rounds: tuple[tuple[int, ...], ...] = ()
    declined: dict[str, int] = {}

    @property
    def draft_rounds(self) -> int:
        return sum(sum(row) for row in self.rounds[1:])

    @property
    def draft_n(self) -> int:
        return sum(drafts * sum(row) for drafts, row in enumerate(self.rounds))

    @property
    def draft_n_accepted(self) -> int:
        return sum(accepted * count for row in self.rounds for accepted, count in enumerate(row))


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """How likely a token of the reply was, under the model itself: before temperature, truncation, bias and penalties.

    Attributes:
        top: the likeliest tokens and their log-probabilities, in falling order.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenChunk(msgspec.Struct, frozen=True, kw_only=True):
    """What one window added to one reply.

    Attributes:
        token_ids: may be empty on the last chunk; never holds the token that ended the reply.
        finish_reason: set on the last chunk only.
        statistics: as of this chunk.
        logprobs: one for each of `token_ids`, where the request asked for them.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    statistics: GenerationStatistics = GenerationStatistics()
    logprobs: tuple[TokenLogprob, ...] | None = None


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What the verifier serves.

    Attributes:
        context: the most tokens of prompt and reply together.
        max_draft: the most drafts a window takes for one request; 0 when speculation is off.
    """

    model: str
    architecture: str
    precision: str
    context: int
    slots: int
    created: int
    draft_kind: str | None
    max_draft: int


class ChatTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation, as the chat template sees it."""

    role: str
    content: str


class EncodedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt in the target's token ids."""

    token_ids: tuple[int, ...]


class TokenTable(msgspec.Struct, frozen=True, kw_only=True):
    """What it takes to turn ids back into text anywhere: the bytes each token stands for.

    Attributes:
        blob: the bytes of all tokens, one after the other.
        ends: `ends[i]` is where token `i` ends in `blob`.
        special_ids: control tokens, which never show in a reply.
        end_ids: tokens that end a reply.
    """

    blob: bytes
    ends: tuple[int, ...]
    special_ids: frozenset[int]
    end_ids: tuple[int, ...]
    has_chat_template: bool
