"""Log-probabilities under the model itself: before temperature, truncation, bias and penalties.

That is what vLLM reports by default (`raw_logprobs`). Knows rows; not who asked.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from deployments.lm.sampling.blocks import folded_sum, in_blocks, largest

MOST_TOP = 20
"""The most alternatives per token; OpenAI's limit."""


class LogProbs(NamedTuple):
    """Per row.

    Attributes:
        own: of the token drawn.
        top: of the likeliest tokens, in falling order.
    """

    own: Float32[Array, " rows"]
    top_tokens: Int32[Array, "rows top"]
    top: Float32[Array, "rows top"]


def no_logprobs(rows: int) -> LogProbs:
    """What is returned where nobody asked."""
    nothing = jnp.zeros((rows, MOST_TOP), jnp.float32)
    return LogProbs(own=nothing[:, 0], top_tokens=nothing.astype(jnp.int32), top=nothing)


def logprobs_of(logits: Float32[Array, "rows vocabulary"], *, tokens: Int32[Array, " rows"]) -> LogProbs:
    """Of the tokens drawn and of the likeliest ones. There must be at least 8 rows."""
    blocks = in_blocks(logits)
    maxima = jnp.max(blocks, axis=-1)
    peak = jnp.max(maxima, axis=-1)
    total = folded_sum(blocks, term=lambda part: jnp.exp(part - peak[:, None]))
    level = peak + jnp.log(total)
    values, places = largest(blocks, maxima=maxima, count=MOST_TOP)
    own = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return LogProbs(own=own - level, top_tokens=places, top=values - level[:, None])
