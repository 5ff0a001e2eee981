"""A feed-forward of experts as a layer: the router, the experts it chooses among, and one that sees every row.

Source of the layer: Shazeer et al., 2017; of the expert that all rows share: Dai et al., 2024 (DeepSeekMoE).
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float32, Int32

from deployments.lm.decoder import FeedForward
from deployments.lm.experts import Experts
from deployments.lm.quant.linear import Linear
from deployments.lm.routing import Routing, route
from deployments.lm.sums import rounded, row_sum

_WHOLE = 16


class SharedExpert(nnx.Module):
    """A feed-forward whose result counts by a sigmoid of what it was given (Qwen 2 and 3.5).

    Args:
        gate: what rows are multiplied by before the sigmoid.
    """

    def __init__(self, *, feed_forward: FeedForward, gate: Float32[Array, " width"]) -> None:
        self.feed_forward = feed_forward
        self.gate = nnx.Param(gate)

    def __call__(self, x: Float32[Array, "rows width"], /, *, live: Int32[Array, ""]) -> Float32[Array, "rows width"]:
        # Whole vectors of the processor's, since what is left over of them would be computed by other instructions, to
        # other bits, and which rows that hits depends on the window's size.
        scores = jnp.broadcast_to(row_sum(x * self.gate[...]), (x.shape[0], _WHOLE))
        share = jax.lax.optimization_barrier(jax.nn.sigmoid(jax.lax.optimization_barrier(scores)))[:, :1]
        return rounded(self.feed_forward(x, live=live) * share)


class Mixture(nnx.Module):
    """The experts that each row is routed to, and the shared one where there is one."""

    def __init__(
        self, *, router: Linear, routing: Routing, experts: Experts, shared: SharedExpert | None = None
    ) -> None:
        self.router = router
        self.routing = routing
        self.experts = experts
        self.shared = shared

    def __call__(self, x: Float32[Array, "rows width"], /, *, live: Int32[Array, ""]) -> Float32[Array, "rows width"]:
        routed = route(self.router(x, live=live), routing=self.routing)
        out = self.experts(x, chosen=routed.chosen, weights=routed.weights, live=live)
        return out if self.shared is None else out + self.shared(x, live=live)
