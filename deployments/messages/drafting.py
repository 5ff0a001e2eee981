"""The words of the drafting protocol, verifier to drafter and back (design: one frame per message, see `frames`).

`base_len` is the length of the accepted sequence (prompt included) that a message extends. Commits are contiguous. A
block whose `base_len` or `generation` is not the verifier's current one is stale: counted, never an error. Duplicates
are idempotent. Either side may forget a request; a drafter says so with `Forgotten` and the verifier opens it again.
"""

import msgspec

from deployments.messages.generation import SamplingSettings


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello", array_like=True):
    """The first frame of a connection. A wrong secret closes it."""

    secret: str
    verifier: str


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome", array_like=True):
    """The answer to `Hello`: who drafts here, and how.

    Attributes:
        kind: as in `timings.draft_kind`.
        max_k: the most tokens a block will hold.
    """

    drafter: str
    kind: str
    max_k: int


class Open(msgspec.Struct, frozen=True, kw_only=True, tag="open", array_like=True):
    """A request begins, or begins again: `prompt_ids` is the whole accepted sequence so far."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingSettings
    choice: int
    k_max: int


class AcceptedPrefix(msgspec.Struct, frozen=True, kw_only=True, tag="accepted", array_like=True):
    """Tokens the target drew, to be appended at `base_len`; and how many drafts are wanted next.

    Attributes:
        token_ids: at least one; more after windows whose tokens were not sent one by one.
        accepted: how many of the last block's drafts were kept.
        generation: rises by one with each of these; the block that answers repeats it.
        k: drafts wanted now; 0 asks for none, and none is sent.
        features: hidden states for drafters that read them (`float16`, row-major), else `None`.
    """

    request_id: str
    base_len: int
    token_ids: tuple[int, ...]
    accepted: int
    generation: int
    k: int
    features: bytes | None = None


class DraftBlock(msgspec.Struct, frozen=True, kw_only=True, tag="draft", array_like=True):
    """A guess at the tokens after position `base_len - 1`. May be empty: nothing to guess is an answer too.

    Attributes:
        parents: for trees, the index of each token's parent in this block or -1; `None` for a chain.
    """

    request_id: str
    base_len: int
    generation: int
    token_ids: tuple[int, ...]
    parents: tuple[int, ...] | None = None


class Forgotten(msgspec.Struct, frozen=True, kw_only=True, tag="forgotten", array_like=True):
    """The drafter does not know this request, or its commits left a gap. Open it again."""

    request_id: str


class Close(msgspec.Struct, frozen=True, kw_only=True, tag="close", array_like=True):
    """The request ended. Closing an unknown request is not an error."""

    request_id: str
    reason: str


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag="ping", array_like=True):
    """Asks a drafter that was late whether it answers again."""

    nonce: int


class Pong(msgspec.Struct, frozen=True, kw_only=True, tag="pong", array_like=True):
    nonce: int


class DrafterEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a drafter replica listens, told through a Serve handle only, with the secret that opens it."""

    replica: str
    host: str
    port: int
    secret: str


type ToDrafter = Hello | Open | AcceptedPrefix | Close | Ping
type ToVerifier = Welcome | DraftBlock | Forgotten | Pong
