"""What the tokenizer room counts."""

from deployments.messages.metrics import MetricKind, MetricSpec

REQUESTS = "tokenizer_requests"
TOKENS = "tokenizer_tokens"
SECONDS = "tokenizer_encode_seconds"

SPECS = (
    MetricSpec(
        name=REQUESTS,
        kind=MetricKind.COUNTER,
        help="Prompts given to the tokenizer, by kind (chat, text) and outcome (encoded, refused, cancelled, failed).",
        labels=("kind", "outcome"),
    ),
    MetricSpec(
        name=TOKENS,
        kind=MetricKind.COUNTER,
        help="Prompt tokens the tokenizer made, by kind (chat, text).",
        labels=("kind",),
    ),
    MetricSpec(
        name=SECONDS,
        kind=MetricKind.HISTOGRAM,
        help="Seconds from a prompt to its tokens, template included, by kind (chat, text).",
        labels=("kind",),
        buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
    ),
)
