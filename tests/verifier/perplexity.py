"""Perplexity by precision, over the programs that serve: `python -m tests.verifier.perplexity [MODEL] [TOKENS]`.

Texts are cut into contexts of 512 tokens; each token but the first of a context is predicted, 128 rows a window.
"""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Array

from deployments.lm.checkpoint.gguf import GgufFile
from deployments.lm.kernels.choice import Kernels
from deployments.lm.quant.linear import Precision
from deployments.tokenizer.encoding import PromptEncoder
from deployments.tokenizer.gguf_vocabulary import read_gguf_vocabulary
from serve_app.model_fetch import resolve_model
from serve_app.prompts import load_prompts
from tests.verifier.forcing import forced, network, programs_for

CONTEXT, ROWS, PAGE_SIZE = 512, 128, 128
TOKENS = 10_752
CASES = (
    (Precision.F32, Kernels.XLA),
    (Precision.BF16, Kernels.XLA),
    (Precision.INT8, Kernels.NATIVE),
    (Precision.INT8, Kernels.XLA),
    (Precision.INT8_PLAIN, Kernels.XLA),
    (Precision.W8A16, Kernels.XLA),
)
_DATA = Path(__file__).parent.parent / "data" / "prompts"


class _Line(msgspec.Struct, frozen=True):
    turns: tuple[str, ...]
    reference: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of one precision with one sort of kernels.

    Attributes:
        tokens: how many were predicted.
    """

    precision: Precision
    kernels: Kernels
    tokens: int
    perplexity: float
    seconds: float


def texts() -> tuple[str, ...]:
    """Three texts: mathematics, programs, and questions of eight sorts."""
    found = []
    for name in ("gsm8k", "humaneval"):
        lines = [msgspec.json.decode(line, type=_Line) for line in (_DATA / f"{name}.jsonl").read_bytes().splitlines()]
        found.append("\n\n".join("\n".join((*line.turns, *line.reference)) for line in lines))
    return (*found, "\n\n".join(prompt.text for prompt in load_prompts("mt_bench")))


def contexts(file: GgufFile, *, tokens: int) -> list[tuple[int, ...]]:
    """Contexts of the three texts in turn, until `tokens` are there."""
    encoder = PromptEncoder(read_gguf_vocabulary(file))
    cut: list[list[tuple[int, ...]]] = []
    for text in texts():
        ids = encoder.encode(text)
        cut.append([ids[begin : begin + CONTEXT] for begin in range(0, len(ids) - CONTEXT + 1, CONTEXT)])
    turns = [one for round_ in zip(*cut, strict=False) for one in round_]
    needed = -(-tokens // CONTEXT)
    if needed > len(turns):
        raise ValueError(f"the texts have {len(turns) * CONTEXT} tokens, fewer than {tokens}")
    return turns[:needed]


@jax.jit
def _surprise(logits: Array, targets: Array) -> Array:
    own = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    return jax.scipy.special.logsumexp(logits, axis=-1) - own


def measure(
    path: str, *, precision: Precision, kernels: Kernels = Kernels.XLA, over: Sequence[tuple[int, ...]]
) -> Measured:
    """The perplexity of every token given those before it in its context."""
    began = time.perf_counter()
    model = network(path, precision=precision, kernels=kernels)
    programs = programs_for(model, precision=precision, rows=ROWS, context=CONTEXT, page_size=PAGE_SIZE)
    head = programs.compile_head(ROWS)
    numbers = np.arange(ROWS, dtype=np.int32)
    total, count = 0.0, 0
    for tokens in over:
        for start, size, hidden in forced(programs, tokens):
            following = np.zeros(ROWS, np.int32)
            known = tokens[start + 1 : start + size + 1]
            following[: len(known)] = known
            lost = np.asarray(_surprise(head(hidden, numbers), following), np.float64)
            total += float(lost[: len(known)].sum())
            count += len(known)
    return Measured(
        precision=precision,
        kernels=kernels,
        tokens=count,
        perplexity=math.exp(total / count),
        seconds=time.perf_counter() - began,
    )


def main(model: str = "smollm2-135m", tokens: str = str(TOKENS)) -> None:
    """Prints one line per precision, and two where native kernels have products of their own."""
    path = resolve_model(model)
    over = contexts(GgufFile(path), tokens=int(tokens))
    exact = measure(str(path), precision=Precision.F32, over=over)
    print(f"| precision | kernels | tokens | perplexity | against f32 | seconds |\n|{'---|' * 6}")
    for precision, kernels in CASES:
        found = exact
        if precision is not Precision.F32:
            found = measure(str(path), precision=precision, kernels=kernels, over=over)
        share = 100 * (found.perplexity / exact.perplexity - 1)
        line = (
            precision.value,
            kernels.value,
            f"{found.tokens}",
            f"{found.perplexity:.3f}",
            f"{share:+.2f} %",
            f"{found.seconds:.0f}",
        )
        print(f"| {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
