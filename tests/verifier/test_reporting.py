"""What one request gets of a window's results."""

import jax.numpy as jnp
import numpy as np

from deployments.lm.sampling.logprobs import MOST_TOP, LogProbs
from deployments.messages.generation import GenerateRequest, TokenLogprob
from deployments.verifier.programs import WindowResult
from deployments.verifier.reporting import drawn_for

ROWS = 6
TOP = np.arange(ROWS * MOST_TOP, dtype=np.float32).reshape(ROWS, MOST_TOP)
LOGPROBS = LogProbs(
    own=-jnp.arange(ROWS, dtype=jnp.float32), top_tokens=jnp.asarray(TOP, jnp.int32), top=-jnp.asarray(TOP)
)


def result(*, logprobs: LogProbs | None) -> WindowResult:
    return WindowResult(
        tokens=np.arange(10, 10 + ROWS, dtype=np.int32),
        live=np.array([1, 1, 1, 1, 0, 0], bool),
        scores=np.zeros(ROWS, np.float32),
        logprobs=logprobs,
    )


def request(*, logprobs: int | None) -> GenerateRequest:
    return GenerateRequest(request_id="r", prompt_ids=(1,), max_tokens=9, logprobs=logprobs)


def test_only_rows_that_count_are_told() -> None:
    found = drawn_for(result(logprobs=LOGPROBS), request=request(logprobs=2), rows=range(2, 6))

    assert (found.tokens, found.kept) == ((12, 13), 1)
    assert found.logprobs == (
        TokenLogprob(logprob=-2.0, top=((40, -40.0), (41, -41.0))),
        TokenLogprob(logprob=-3.0, top=((60, -60.0), (61, -61.0))),
    )
    assert all(type(token) is int for token in found.tokens)


def test_only_those_who_asked_are_told() -> None:
    assert drawn_for(result(logprobs=LOGPROBS), request=request(logprobs=None), rows=range(2)).logprobs is None
    assert drawn_for(result(logprobs=None), request=request(logprobs=3), rows=range(2)).logprobs is None
    bare = drawn_for(result(logprobs=LOGPROBS), request=request(logprobs=0), rows=range(1))
    assert bare.logprobs == (TokenLogprob(logprob=0.0),)
