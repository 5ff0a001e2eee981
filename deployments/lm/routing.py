"""Which experts each row of a window goes to. Knows no experts.

Source: Shazeer et al., 2017; renormalised weights as in Mixtral (Jiang et al., 2024).
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from deployments.lm.sums import row_sum, sum_in_order

# No loop over so many values, or a multiple, leaves any over.
_WHOLE = 64


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How a token's experts follow from the router's logits.

    Attributes:
        per_token: how many experts a token goes to.
        normalised: whether their weights add up to one, or are their shares among all experts.
    """

    per_token: int
    normalised: bool


class Routed(NamedTuple):
    """Each row's experts, the heaviest first, and how much each of them counts."""

    chosen: Int32[Array, "rows per_token"]
    weights: Float32[Array, "rows per_token"]


def route(
    logits: Float32[Array, "rows experts"], *, routing: Routing, scales: Float32[Array, " experts"] | None = None
) -> Routed:
    """Softmax over the experts and the best of them, row by row; of equals, the one with the lower number.

    Args:
        logits: of at least 8 rows.
        scales: what each expert's weight is multiplied by in the end, where a model has such factors.
    """
    best, chosen = jax.lax.top_k(logits, routing.per_token)
    shares = _exponentials(best - best[:, :1])
    whole = sum_in_order(shares) if routing.normalised else row_sum(_exponentials(logits - best[:, :1]))[:, 0]
    weights = shares / whole[:, None]
    return Routed(chosen, weights if scales is None else weights * scales[chosen])


def _exponentials(x: Float32[Array, "rows few"]) -> Float32[Array, "rows few"]:
    """Of so few values that a window's make no whole vectors of the processor's: what is left over of them would be
    computed by other instructions, to other bits, and which rows that hits depends on the window's size."""
    few = x.shape[1]
    whole = jnp.pad(x, ((0, 0), (0, -few % _WHOLE)))
    exponentials: Array = jax.lax.optimization_barrier(jnp.exp(jax.lax.optimization_barrier(whole)))
    return exponentials[:, :few]
