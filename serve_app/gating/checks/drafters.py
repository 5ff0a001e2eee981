"""The drafters that are checked, as sources an engine can ask: over the real link to a process of its own."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from deployments.verifier.drafts import DraftSource
from deployments.verifier.links import LinkSettings
from deployments.verifier.loading import LoadedModel
from deployments.verifier.remote import RemoteDrafts
from serve_app.benchmark.drafter_link import drafter_process, linked
from serve_app.benchmark.host import Recorder
from serve_app.gating.gatekeeper import DrafterChoice

# On a busy machine a draft can be late. Who compares tokens wants them all, and does not measure speed.
_PATIENT_S = 0.25


@dataclass(frozen=True, kw_only=True)
class CheckedDrafter:
    """One drafter, ready to be asked.

    Attributes:
        choice: as the deployment would choose it.
        patient: a source that waits for drafts, for comparing tokens.
        serving: one with the deployment's own deadline, for measuring speed.
    """

    choice: DrafterChoice
    patient: Callable[[], AbstractContextManager[DraftSource]]
    serving: Callable[[], AbstractContextManager[DraftSource]]

    @property
    def kind(self) -> str:
        return self.choice.kind

    @property
    def is_on_chip(self) -> bool:
        return self.choice.placement == "chip"


def remote_drafter(choice: DrafterChoice, /, *, vocabulary: int, draft_k: int, deadline_s: float) -> CheckedDrafter:
    """The drafter as a replica of its own.

    Args:
        deadline_s: the deployment's own.
    """
    opened = partial(_remote, choice, vocabulary=vocabulary, draft_k=draft_k)
    return CheckedDrafter(
        choice=choice,
        patient=partial(opened, deadline_s=_PATIENT_S),
        serving=partial(opened, deadline_s=deadline_s),
    )


def chip_drafter(choice: DrafterChoice, /, *, model: LoadedModel) -> CheckedDrafter:
    """The drafter on the verifier's device."""

    def opened() -> AbstractContextManager[DraftSource]:
        return nullcontext(model.chip_drafts())

    return CheckedDrafter(choice=choice, patient=opened, serving=opened)


@contextmanager
def _remote(choice: DrafterChoice, *, vocabulary: int, draft_k: int, deadline_s: float) -> Iterator[DraftSource]:
    link = LinkSettings(verifier="gate", vocab_size=vocabulary, k_max=draft_k, deadline_s=deadline_s)
    with drafter_process(choice.settings) as endpoint, linked(endpoint, settings=link, metrics=Recorder()) as links:
        yield RemoteDrafts(links)
