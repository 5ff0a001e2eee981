"""What one reply cost and what speculation did for it, as JSON: llama.cpp's `timings` and vLLM's `metrics`."""

from typing import Any

from deployments.messages.generation import GenerationStatistics


def timings(statistics: GenerationStatistics, /) -> dict[str, Any]:
    """As llama.cpp's server reports them; the draft keys are absent when no drafter ran."""
    shape: dict[str, Any] = {
        "cache_n": statistics.cache_n,
        "prompt_n": statistics.prompt_n,
        "prompt_ms": statistics.prompt_ms,
        "prompt_per_token_ms": _ratio(statistics.prompt_ms, statistics.prompt_n),
        "prompt_per_second": _ratio(1000.0 * statistics.prompt_n, statistics.prompt_ms),
        "predicted_n": statistics.predicted_n,
        "predicted_ms": statistics.predicted_ms,
        "predicted_per_token_ms": _ratio(statistics.predicted_ms, statistics.predicted_n),
        "predicted_per_second": _ratio(1000.0 * statistics.predicted_n, statistics.predicted_ms),
    }
    if statistics.draft_kind is not None:
        shape["draft_n"] = statistics.draft_n
        shape["draft_n_accepted"] = statistics.draft_n_accepted
        shape["draft_rounds"] = statistics.draft_rounds
        shape["draft_kind"] = statistics.draft_kind
    return shape


def reply_metrics(statistics: GenerationStatistics, /, *, max_draft: int) -> dict[str, Any]:
    """vLLM's per-request `metrics` object; `declined`, windows without a draft by reason, is ours.

    Args:
        max_draft: the most drafts a window could have held for this request.
    """
    if not statistics.draft_rounds and not statistics.declined:
        return {"speculative_decoding": None}
    steps, drafts, accepted = statistics.draft_rounds, statistics.draft_n, statistics.draft_n_accepted
    by_length = {str(length): list(row) for length, row in enumerate(statistics.rounds) if length and any(row)}
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1.0 + accepted / steps if steps else None,
            "draft_acceptance_rate": accepted / drafts if drafts else None,
            "acceptance_histogram": _histogram(statistics, longest=max_draft),
            "acceptance_histogram_by_draft_length": by_length,
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafts,
            "num_spec_tokens": max_draft,
            "declined": dict(statistics.declined),
        }
    }


def _histogram(statistics: GenerationStatistics, /, *, longest: int) -> list[int]:
    """Index `a` counts the windows with a draft in which exactly `a` tokens of it were kept."""
    size = 1 + max([longest, *(len(row) - 1 for row in statistics.rounds)])
    counts = [0] * size
    for row in statistics.rounds[1:]:
        for kept, windows in enumerate(row):
            counts[kept] += windows
    return counts


def _ratio(numerator: float, denominator: float, /) -> float:
    return numerator / denominator if denominator else 0.0
