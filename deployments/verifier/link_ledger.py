"""What one drafter holds of each request, what it was asked, and whether what it says is an answer. Pure; no socket.

The ledger writes the messages of a turn and judges every message that comes back, so that nothing but a well-formed
answer to the question now open can reach a window. It lives as long as its connection, on which nothing sent is lost:
a drafter that was left alone for a while has only what it missed to catch up on. Were it told everything again, it
would be late again.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

import msgspec

from deployments.messages.drafting import AcceptedPrefix, Close, DraftBlock, Forgotten, Open, ToDrafter, ToVerifier
from deployments.messages.generation import Decline, GenerateRequest
from deployments.verifier.drafts import DraftWanted

_LONGEST_HOLD = 256
_MOST_LEAVING = 1024


# Structs where one is made for every answer or question: they take a quarter of a dataclass's time.
class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a message from the drafter is worth.

    Attributes:
        settles: the request's open question is answered by it, well or badly.
    """

    request_id: str
    outcome: DraftBlock | Decline
    settles: bool


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    base_len: int
    k: int


@dataclass(slots=True, kw_only=True)
class _Account:
    """One request: `held` tokens are with the drafter (0: not open), `asked` and `answered` are generations."""

    held: int = 0
    asked: int = 0
    answered: int = 0
    question: _Question | None = None
    refusals: int = 0
    hold: int = 0


class Ledger:
    """The accounts of all requests with one drafter.

    Args:
        vocab_size: draft tokens must be below it.
        k_max: the most drafts a window ever takes for one request, told when a request opens.
    """

    def __init__(self, *, vocab_size: int, k_max: int) -> None:
        self._vocab_size = vocab_size
        self._k_max = k_max
        self._accounts: dict[str, _Account] = {}
        self._leaving: dict[str, int] = {}

    def open(self, request: GenerateRequest, /) -> Open:
        """The message that tells the drafter of a new request's prompt."""
        account = self._accounts.setdefault(request.request_id, _Account())
        return self._open(request, account=account, sequence=request.prompt_ids)

    def ask(self, turn: DraftWanted, /, *, k: int) -> tuple[ToDrafter, ...]:
        """The messages that bring the drafter up to `turn.sequence` and ask for `k` drafts.

        Returns:
            Nothing while a request is left alone that the drafter keeps forgetting.
        """
        account = self._accounts.setdefault(turn.request.request_id, _Account())
        if account.hold:
            account.hold -= 1
            return ()
        length = len(turn.sequence)
        messages: list[ToDrafter] = []
        if not account.held:
            messages.append(self._open(turn.request, account=account, sequence=turn.sequence[: length - 1]))
        # A commit holds at least one token; repeating the last one asks again where nothing is new.
        base_len = min(account.held, length - 1)
        account.held = length
        account.asked += 1
        account.question = _Question(base_len=length, k=k)
        commit = AcceptedPrefix(
            request_id=turn.request.request_id,
            base_len=base_len,
            token_ids=tuple(turn.sequence[base_len:]),
            accepted=turn.accepted,
            generation=account.asked,
            k=k,
        )
        return (*messages, commit)

    def judge(self, message: ToVerifier, /) -> Verdict | None:
        """What `message` is worth; `None` when it says nothing about a request that is still here."""
        match message:
            case DraftBlock():
                account = self._accounts.get(message.request_id)
                return self._judge_leaver(message) if account is None else self._judge_block(message, account=account)
            case Forgotten():
                account = self._accounts.get(message.request_id)
                return None if account is None else _judge_forgotten(message, account=account)
            case _:
                return None

    def expire(self) -> None:
        """Closes every open question: an answer that comes later is stale."""
        for account in self._accounts.values():
            account.question = None

    def close(self, request_id: str, /, *, reason: str) -> Close | None:
        """Ends a request; the message that says so, if the drafter holds it."""
        account = self._accounts.pop(request_id, None)
        if account is None:
            return None
        if account.asked > account.answered:
            self._leaving[request_id] = account.asked
            if len(self._leaving) > _MOST_LEAVING:
                del self._leaving[next(iter(self._leaving))]
        return Close(request_id=request_id, reason=reason) if account.held else None

    def close_all_but(self, request_ids: Container[str], /, *, reason: str) -> list[Close]:
        """Ends every request but these; the messages that say so."""
        ended = [request_id for request_id in self._accounts if request_id not in request_ids]
        messages = [self.close(request_id, reason=reason) for request_id in ended]
        return [message for message in messages if message is not None]

    def _open(self, request: GenerateRequest, *, account: _Account, sequence: Sequence[int]) -> Open:
        account.held = len(sequence)
        return Open(
            request_id=request.request_id,
            prompt_ids=tuple(sequence),
            sampling=request.sampling,
            choice=request.choice,
            k_max=self._k_max,
        )

    def _judge_leaver(self, block: DraftBlock) -> Verdict:
        asked = self._leaving.get(block.request_id, 0)
        known = 0 < block.generation <= asked
        if known and block.generation == asked:
            del self._leaving[block.request_id]
        return Verdict(
            request_id=block.request_id, outcome=Decline.STALE if known else Decline.MALFORMED, settles=False
        )

    def _judge_block(self, block: DraftBlock, *, account: _Account) -> Verdict:
        if not 0 < block.generation <= account.asked:
            return Verdict(request_id=block.request_id, outcome=Decline.MALFORMED, settles=False)
        account.answered = max(account.answered, block.generation)
        question = account.question
        if question is None or block.generation < account.asked:
            return Verdict(request_id=block.request_id, outcome=Decline.STALE, settles=False)
        account.question = None
        account.refusals = 0
        return Verdict(request_id=block.request_id, outcome=self._worth(block, question=question), settles=True)

    def _worth(self, block: DraftBlock, *, question: _Question) -> DraftBlock | Decline:
        if block.base_len != question.base_len:
            return Decline.STALE
        if not block.token_ids:
            return Decline.NO_GUESS
        # No tree is ever asked for, so parents can only be a mistake.
        if block.parents is not None or len(block.token_ids) > question.k:
            return Decline.MALFORMED
        if not all(0 <= token < self._vocab_size for token in block.token_ids):
            return Decline.MALFORMED
        return block


def _judge_forgotten(message: Forgotten, *, account: _Account) -> Verdict:
    account.held = 0
    settles = account.question is not None
    if settles:
        account.question = None
        account.answered = account.asked
        # A drafter with no room for a request forgets it at once; opening it every round would cost both ends.
        account.hold = 0 if account.refusals == 0 else min(2**account.refusals, _LONGEST_HOLD)
        account.refusals = min(account.refusals + 1, 16)
    return Verdict(request_id=message.request_id, outcome=Decline.FORGOTTEN, settles=settles)
