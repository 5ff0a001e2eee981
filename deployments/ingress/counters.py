"""What the ingress counts, and the words for it. Who exports the numbers is decided outside."""

from deployments.messages.metrics import MetricKind, Metrics, MetricSpec

_FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

INGRESS_METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        name="ingress_requests",
        kind=MetricKind.COUNTER,
        help="HTTP requests answered, by route and status; 499 is a client that left first.",
        labels=("route", "status"),
    ),
    MetricSpec(name="ingress_in_flight", kind=MetricKind.GAUGE, help="Replies being generated now."),
    MetricSpec(
        name="ingress_time_to_first_token_seconds",
        kind=MetricKind.HISTOGRAM,
        help="From the whole request read to the first token of its first choice.",
        buckets=_FIRST_TOKEN_BUCKETS,
    ),
    MetricSpec(
        name="ingress_inter_token_seconds",
        kind=MetricKind.HISTOGRAM,
        help="Time per token after the first chunk of a choice; a chunk of k tokens counts k times.",
        buckets=_TOKEN_BUCKETS,
    ),
    MetricSpec(
        name="ingress_queue_refusals", kind=MetricKind.COUNTER, help="Requests answered 429, here or by the verifier."
    ),
    MetricSpec(name="ingress_disconnects", kind=MetricKind.COUNTER, help="Clients that left before their answer."),
    MetricSpec(name="ingress_stream_errors", kind=MetricKind.COUNTER, help="Streams that ended with an error frame."),
    MetricSpec(name="ingress_prompt_tokens", kind=MetricKind.COUNTER, help="Prompt tokens of admitted requests."),
    MetricSpec(name="ingress_completion_tokens", kind=MetricKind.COUNTER, help="Tokens generated for clients."),
    MetricSpec(name="ingress_stop_string_hits", kind=MetricKind.COUNTER, help="Replies ended by a stop string."),
    MetricSpec(
        name="ingress_gather_failures",
        kind=MetricKind.COUNTER,
        help="Deployments whose metrics did not arrive in time, or could not be read.",
        labels=("source",),
    ),
)


class Counters:
    """The ingress's numbers, one verb each."""

    def __init__(self, *, metrics: Metrics) -> None:
        self._metrics = metrics

    def answered(self, *, route: str, status: int) -> None:
        """A request got its status; 429 is a refusal as well."""
        self._metrics.add("ingress_requests", labels=(route, str(status)))
        if status == 429:
            self._metrics.add("ingress_queue_refusals")

    def in_flight(self, choices: int, /) -> None:
        self._metrics.set("ingress_in_flight", value=choices)

    def first_token(self, seconds: float, /) -> None:
        self._metrics.observe("ingress_time_to_first_token_seconds", value=seconds)

    def later_tokens(self, *, tokens: int, seconds: float) -> None:
        for _ in range(tokens):
            self._metrics.observe("ingress_inter_token_seconds", value=seconds / tokens)

    def disconnected(self) -> None:
        self._metrics.add("ingress_disconnects")

    def stream_failed(self) -> None:
        self._metrics.add("ingress_stream_errors")

    def prompt_tokens(self, count: int, /) -> None:
        self._metrics.add("ingress_prompt_tokens", amount=count)

    def completion_tokens(self, count: int, /) -> None:
        self._metrics.add("ingress_completion_tokens", amount=count)

    def stop_string_hit(self) -> None:
        self._metrics.add("ingress_stop_string_hits")

    def gather_failed(self, source: str, /) -> None:
        self._metrics.add("ingress_gather_failures", labels=(source,))

    def exposition(self) -> str:
        return self._metrics.exposition()
