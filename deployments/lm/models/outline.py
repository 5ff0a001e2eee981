"""A network of shapes: every part as `assembly` makes it, of as many zeros as there would be weights.

Only ever traced, so the zeros are nowhere. No weight is read, which need not exist.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float32

from deployments.lm.checkpoint.weights import Weights
from deployments.lm.kernels.choice import Kernels
from deployments.lm.layers import Embedding, RMSNorm
from deployments.lm.models.assembly import Assembly
from deployments.lm.quant.linear import Linear, Precision, zero_linear
from deployments.lm.quant.stacked import StackedLinear, zero_stacked


@dataclass(frozen=True, kw_only=True)
class OutlineAssembly(Assembly):
    """Makes the same layers as `Assembly`, and knows of each weight its shape alone."""

    def linear(self, *names: str) -> Linear:
        return self._zeros(names, precision=self.precision)

    def exact_linear(self, *names: str) -> Linear:
        return self._zeros(names, precision=Precision.F32)

    def stacked(self, *prefixes: str, count: int) -> StackedLinear:
        """As in `Assembly`."""
        shapes = [self.weights.shape(f"{prefix}.0") for prefix in prefixes]
        return zero_stacked(
            outputs=sum(shape[0] for shape in shapes),
            inputs=shapes[0][1],
            experts=count,
            precision=self.precision,
            kernels=self.kernels,
        )

    def vector(self, *names: str) -> Float32[Array, " outputs"]:
        return jnp.zeros(sum(self.weights.shape(name)[0] for name in names), jnp.float32)

    def turned(self, name: str, /) -> Float32[Array, "inputs outputs"]:
        return jnp.zeros(self.weights.shape(name)[::-1], jnp.float32)

    def norm(self, name: str, /) -> RMSNorm:
        return RMSNorm(self.vector(name), epsilon=self.epsilon)

    def embedding(self, name: str = "embedding", /) -> Embedding:
        return Embedding(jnp.zeros(self.weights.shape(name), self.precision.embedding_dtype))

    def _zeros(self, names: tuple[str, ...], *, precision: Precision) -> Linear:
        outputs = sum(self.weights.shape(name)[0] for name in names)
        inputs = self.weights.shape(names[0])[1]
        return zero_linear(outputs=outputs, inputs=inputs, precision=precision, kernels=self.kernels)


def assembly_of(weights: Weights, /, *, precision: Precision, kernels: Kernels, epsilon: float) -> Assembly:
    """What makes layers of them: of their values, or of their shapes where that is all there is."""
    kind = Assembly if weights.have_values else OutlineAssembly
    return kind(weights=weights, precision=precision, kernels=kernels, epsilon=epsilon)
