"""Which kinds of drafters could guess for a checkpoint, and why not the others. Knows headers, runs nothing."""

from dataclasses import dataclass

from serve_app.inspecting.header import Header
from serve_app.inspecting.tokens import TokenizerFacts

# The kinds that this version can be configured with, proofs apart.
RUNNING = frozenset({"ngram"})


@dataclass(frozen=True, kw_only=True)
class Drafter:
    """One kind.

    Attributes:
        could_apply: nothing in the checkpoint speaks against it.
        runs: this version has it, and it runs here.
        reason: why, or what is missing.
    """

    kind: str
    could_apply: bool
    runs: bool
    reason: str


def drafters_for(header: Header, /, *, tokenizer: TokenizerFacts, refusal: str | None) -> tuple[Drafter, ...]:
    """All kinds, in the order in which `auto` will look at them, those that need training for the model first.

    Args:
        refusal: why the network itself does not run here; `None` if it does.
    """
    tokens = f"the same {tokenizer.size} tokens" if tokenizer.size else "the same tokens"
    mtp = header.mtp_tensors
    found = (
        ("eagle3", True, "needs a head trained for this very model, in a folder of its own"),
        ("dflash", True, "needs a block drafter trained for this very model, in a folder of its own"),
        ("mtp", mtp > 0, f"the checkpoint carries {mtp} tensors of an MTP layer" if mtp else _NO_MTP),
        ("draft_model", True, f"needs a smaller model with {tokens}"),
        ("prediction", True, "copies from the request's own prediction field; needs nothing of the checkpoint"),
        ("ngram", True, "copies from the conversation; needs nothing of the checkpoint"),
    )
    return tuple(
        Drafter(
            kind=kind,
            could_apply=could_apply,
            runs=kind in RUNNING and could_apply and refusal is None,
            reason=reason + _limit(kind, could_apply=could_apply, refusal=refusal),
        )
        for kind, could_apply, reason in found
    )


_NO_MTP = "the checkpoint carries no mtp.* or nextn.* tensors"


def _limit(kind: str, *, could_apply: bool, refusal: str | None) -> str:
    if not could_apply:
        return ""
    if kind not in RUNNING:
        return "; this version does not run it yet"
    return "; this version does not run the network" if refusal else ""
