"""How long a round with a drafter takes: the verifier's own links, and a drafter in another process."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from deployments.lm.drafting.ngram import NgramSettings
from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier.drafts import DraftWanted
from deployments.verifier.link_counters import EXCHANGE_SECONDS, LINK_COUNTERS
from deployments.verifier.links import LinkSettings
from deployments.verifier.loading import LoadedModel
from deployments.verifier.remote import RemoteDrafts
from serve_app.benchmark.alternation import Effort, Spread, alternate, spread, timed
from serve_app.benchmark.drafter_link import drafter_process, linked
from serve_app.benchmark.host import Recorder, step_until_decoding
from serve_app.metrics import ReplicaMetrics

_PROMPT = 64
# Windows lie between rounds, and the drafter sleeps meanwhile; without a pause its caches would be too warm.
_PAUSE_S = 0.01


@dataclass(frozen=True, kw_only=True)
class ExchangeResult:
    """Seconds of one round: what was accepted goes out, drafts come back, for all requests together.

    Attributes:
        drafts: tokens drafted per request and round.
    """

    requests: int
    seconds: Spread
    drafts: float


@dataclass(kw_only=True)
class _Conversation:
    """A request that grows through the text as if it were accepted."""

    request: GenerateRequest
    text: tuple[int, ...]
    sequence: list[int] = field(default_factory=list)

    def grow(self, tokens: int, /) -> None:
        at = len(self.sequence)
        self.sequence.extend(self.text[(at + i) % len(self.text)] for i in range(tokens))

    def wanted(self, k: int, /) -> DraftWanted:
        return DraftWanted(request=self.request, sequence=self.sequence, accepted=0, k=k)


def measure_exchange(ids: Sequence[int], /, *, requests: int, draft_k: int, rounds: int) -> ExchangeResult:
    """`rounds` rounds over conversations cut from `ids`, two tokens further each time.

    Raises:
        Unavailable: the drafter did not start.
    """
    settings = LinkSettings(verifier="bench", vocab_size=max(ids) + 1, k_max=draft_k, deadline_s=1.0)
    conversations = [_conversation(ids, number=number) for number in range(requests)]
    drafted: list[int] = []
    metrics = ReplicaMetrics()(LINK_COUNTERS)
    with (
        drafter_process(NgramSettings(max_k=draft_k)) as endpoint,
        linked(endpoint, settings=settings, metrics=metrics) as links,
    ):
        drafts = RemoteDrafts(links)

        def exchange() -> None:
            brought = drafts.exchange([conversation.wanted(draft_k) for conversation in conversations])
            drafted.append(sum(len(tokens) for tokens in brought.tokens.values()))

        def run(_: int) -> float:
            time.sleep(_PAUSE_S)
            for conversation in conversations:
                conversation.grow(2)
            return timed(exchange)

        seconds = alternate({"exchange": run}, effort=Effort(rounds=rounds))["exchange"]
    return ExchangeResult(
        requests=requests, seconds=spread(seconds), drafts=sum(drafted) / len(drafted) / len(conversations)
    )


def measure_wait(model: LoadedModel, /, *, ids: Sequence[int], windows: int) -> Spread:
    """What the engine's own thread spends on drafts per round that asks for some, all slots decoding.

    Less than an exchange: it asks as soon as a window's tokens are known, and hands them out while drafters draft.

    Raises:
        Unavailable: the drafter did not start.
    """
    recorder = Recorder()
    draft_k, room = max(model.settings.draft_k, 1), model.settings.context
    settings = LinkSettings(verifier="bench", vocab_size=model.config.vocabulary, k_max=draft_k, deadline_s=1.0)
    with (
        drafter_process(NgramSettings(max_k=draft_k)) as endpoint,
        linked(endpoint, settings=settings, metrics=recorder) as links,
    ):
        engine = model.engine(drafts=RemoteDrafts(links), metrics=recorder)
        for number in range(model.settings.slots):
            prompt = _conversation(ids, number=number).request.prompt_ids[: room // 2]
            greedy = SamplingSettings(temperature=0.0)
            engine.submit(
                GenerateRequest(
                    request_id=f"bench-{number}", prompt_ids=prompt, max_tokens=room - len(prompt), sampling=greedy
                )
            )
        step_until_decoding(engine, slots=model.settings.slots)
        for _ in range(windows):
            engine.step()
    return spread(recorder.observed[EXCHANGE_SECONDS])


def _conversation(ids: Sequence[int], *, number: int) -> _Conversation:
    start = number * _PROMPT % len(ids)
    text = (*ids[start:], *ids[:start])
    prompt = text[:_PROMPT]
    request = GenerateRequest(request_id=f"bench-{number}", prompt_ids=prompt, max_tokens=1)
    return _Conversation(request=request, text=text, sequence=list(prompt))
