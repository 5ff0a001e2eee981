"""What the verifier counts. Names carry vLLM's suffixes where vLLM has one."""

from deployments.messages.metrics import MetricKind, MetricSpec

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
_HOST_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05)
_SHARES = (0.125, 0.25, 0.5, 0.75, 0.9, 1.0)


def _counter(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=name, kind=MetricKind.COUNTER, help=text, labels=labels)


def _gauge(name: str, text: str) -> MetricSpec:
    return MetricSpec(name=name, kind=MetricKind.GAUGE, help=text)


def _histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> MetricSpec:
    return MetricSpec(name=name, kind=MetricKind.HISTOGRAM, help=text, labels=labels, buckets=buckets)


ENGINE_METRICS: tuple[MetricSpec, ...] = (
    _counter("prompt_tokens", "Prompt tokens admitted."),
    _counter("generation_tokens", "Tokens generated."),
    _counter("requests_finished", "Requests that ran to their end.", "reason"),
    _counter("requests_cancelled", "Requests cancelled by their client."),
    _counter("requests_expired", "Requests whose deadline passed before they had a slot."),
    _counter("num_preemptions", "Times a request lost its slot because others needed its pages; it goes on later."),
    _counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    _counter("prefix_cache_hits", "Prompt tokens found in the prefix cache and not computed."),
    _counter("pages_evicted", "Cached pages that were needed for something else."),
    _counter("windows_failed", "Windows that could not run; every request in them ended with an error."),
    _counter("spec_decode_num_drafts", "Windows in which a request had drafts, summed over requests."),
    _counter("spec_decode_num_draft_tokens", "Draft tokens verified."),
    _counter("spec_decode_num_accepted_tokens", "Draft tokens accepted."),
    _counter("spec_decode_num_accepted_tokens_per_pos", "Draft tokens accepted, by place in the draft.", "position"),
    _counter("spec_decode_declined", "Windows in which a request had no draft, by reason.", "reason"),
    _counter("round_calls", "Device calls of several windows whose drafts the device made itself."),
    _counter("round_windows", "Windows that ran in such calls."),
    _counter("late_compilations", "Programs compiled after the service was ready; each one made somebody wait."),
    _gauge("active_slots", "Slots in use."),
    _gauge("waiting_requests", "Requests waiting for a slot."),
    _gauge("pages_in_use", "Cache pages held by at least one slot."),
    _gauge("pages_cached", "Cache pages held by no slot whose content can still be found."),
    _gauge("open_streams", "Streams a client is reading."),
    _gauge("ladder_rungs", "Window sizes the start-up probe proved exact."),
    _histogram("window_seconds", "Device time of a window, by rows.", "rows", buckets=_SECONDS),
    _histogram(
        "host_seconds",
        "Host time between the tokens of a window and the next window, without waiting for drafts.",
        buckets=_HOST_SECONDS,
    ),
    _histogram("window_occupancy", "Share of a window's rows that carry a token.", buckets=_SHARES),
)
