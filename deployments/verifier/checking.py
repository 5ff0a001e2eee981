"""Whether a request can be served at all. The ingress says so first, in better words; this one trusts nobody."""

import math

from deployments.messages.errors import InvalidRequest
from deployments.messages.generation import (
    LEAST_REPETITION,
    MOST_BIASES,
    MOST_LOGPROBS,
    GenerateRequest,
    SamplingSettings,
)
from deployments.verifier.history import MOST_ENDS


def check_request(request: GenerateRequest, /, *, vocabulary: int) -> None:
    """Raises `InvalidRequest`: it has no prompt, asks for nothing, names a token that does not exist, or too many."""
    if not request.prompt_ids:
        raise InvalidRequest("the prompt is empty; send at least one token", "prompt")
    if request.max_tokens < 1:
        raise InvalidRequest("max_tokens must be at least 1", "max_tokens")
    # Ends that the vocabulary does not have never come; only a negative one would be taken for another token.
    if len(request.end_ids) > MOST_ENDS or min(request.end_ids, default=0) < 0:
        raise InvalidRequest(f"at most {MOST_ENDS} tokens may end a reply, and none below 0", "end_ids")
    if not 0 <= (request.logprobs or 0) <= MOST_LOGPROBS:
        raise InvalidRequest(f"top_logprobs must be 0 to {MOST_LOGPROBS}", "top_logprobs")
    _check_ids(request.prompt_ids, field="prompt", vocabulary=vocabulary)
    _check_bias(request.sampling.logit_bias, vocabulary=vocabulary)
    _check_penalties(request.sampling)


def _check_bias(bias: tuple[tuple[int, float], ...], *, vocabulary: int) -> None:
    ids = tuple(token for token, _ in bias)
    if len(bias) > MOST_BIASES or len(set(ids)) < len(ids):
        raise InvalidRequest(f"logit_bias may hold at most {MOST_BIASES} tokens, each once", "logit_bias")
    _check_ids(ids, field="logit_bias", vocabulary=vocabulary)
    if not all(math.isfinite(value) for _, value in bias):
        raise InvalidRequest("logit_bias must hold finite numbers", "logit_bias")


def _check_penalties(sampling: SamplingSettings) -> None:
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        if not math.isfinite(getattr(sampling, name)):
            raise InvalidRequest(f"{name} must be a finite number", name)
    if sampling.repetition_penalty < LEAST_REPETITION:
        raise InvalidRequest(f"repetition_penalty must be at least {LEAST_REPETITION}", "repetition_penalty")


def _check_ids(ids: tuple[int, ...], *, field: str, vocabulary: int) -> None:
    strange = [token for token in ids if not 0 <= token < vocabulary]
    if strange:
        raise InvalidRequest(f"token id {strange[0]} does not exist; ids run from 0 to {vocabulary - 1}", field)
