"""What only Gemma 4's layers have: inputs of their own from the tokens, and experts beside a dense feed-forward.

Source of the architecture: the Gemma 4 model card and transformers' `modeling_gemma4`.
"""

from flax import nnx
from jaxtyping import Array, Float32, Int32

from deployments.lm.decoder import FeedForward, Window, WindowRows
from deployments.lm.experts import Experts
from deployments.lm.layers import Activation, Embedding, RMSNorm
from deployments.lm.quant.linear import Linear
from deployments.lm.routing import Routing, route
from deployments.lm.sums import rounded


class TokenInputs(nnx.Module):
    """What each layer gets of a row's token: a part that depends on the token alone, and one on the stream.

    Args:
        embedding: the inputs of all layers side by side.
        projection: from the stream before the first layer to as much.
        layers: how many there are.
        scale: what the projection is multiplied by.
    """

    def __init__(self, *, embedding: Embedding, projection: Linear, norm: RMSNorm, layers: int, scale: float) -> None:
        self.embedding = embedding
        self.projection = projection
        self.norm = norm
        self.layers = layers
        self.scale = scale

    def __call__(self, x: Float32[Array, "rows width"], /, *, rows: WindowRows) -> Float32[Array, "rows layers inputs"]:
        of_tokens = self.embedding(rows.tokens).reshape(len(x), self.layers, -1)
        of_stream = (self.projection(x, live=rows.live) * self.scale).reshape(of_tokens.shape)
        both = rounded(self.norm(of_stream)) + rounded(of_tokens * of_tokens.shape[-1] ** 0.5)
        mean: Array = both * 2.0**-0.5
        return mean


class TokenInput(nnx.Module):
    """A layer's use of its input: the stream gates it, and a projection brings it into the stream."""

    def __init__(self, layer: int, /, *, gate: Linear, output: Linear, norm: RMSNorm) -> None:
        self.layer = layer
        self.gate = gate
        self.output = output
        self.norm = norm

    def __call__(self, x: Float32[Array, "rows width"], /, *, window: Window) -> Float32[Array, "rows width"]:
        if window.inputs is None:
            raise ValueError("a layer with inputs of its tokens stands in a network that has none to give it")
        gate = Activation.GELU(self.gate(x, live=window.rows.live))
        return self.norm(self.output(gate * window.inputs[:, self.layer], live=window.rows.live))


class Gemma4Ending(nnx.Module):
    """What a layer ends with: its token's input, where it has one, and a scale of the whole stream."""

    def __init__(self, *, token_input: TokenInput | None, scale: Float32[Array, " one"] | None) -> None:
        self.token_input = token_input
        self.scale = None if scale is None else nnx.Param(scale)

    def __call__(self, x: Float32[Array, "rows width"], /, *, window: Window) -> Float32[Array, "rows width"]:
        if self.token_input is not None:
            x = x + rounded(self.token_input(x, window=window))
        return x if self.scale is None else rounded(x * self.scale[...])


class DenseAndExperts(nnx.Module):
    """A dense feed-forward and routed experts beside it, each between norms of its own, added up.

    Args:
        router_norm: of what the router sees; its scales are its weight.
        scales: what each expert's weight is multiplied by.
    """

    def __init__(
        self,
        *,
        dense_norm: RMSNorm,
        dense: FeedForward,
        after_dense: RMSNorm,
        router_norm: RMSNorm,
        router: Linear,
        routing: Routing,
        scales: Float32[Array, " experts"],
        experts_norm: RMSNorm,
        experts: Experts,
        after_experts: RMSNorm,
    ) -> None:
        self.dense_norm = dense_norm
        self.dense = dense
        self.after_dense = after_dense
        self.router_norm = router_norm
        self.router = router
        self.routing = routing
        self.scales = nnx.Param(scales)
        self.experts_norm = experts_norm
        self.experts = experts
        self.after_experts = after_experts

    def __call__(self, x: Float32[Array, "rows width"], /, *, live: Int32[Array, ""]) -> Float32[Array, "rows width"]:
        dense = self.after_dense(self.dense(self.dense_norm(x), live=live))
        logits = self.router(self.router_norm(x), live=live)
        routed = route(logits, routing=self.routing, scales=self.scales[...])
        chosen = self.experts(self.experts_norm(x), chosen=routed.chosen, weights=routed.weights, live=live)
        return rounded(dense) + rounded(self.after_experts(chosen))
