"""What a drafter replica counts, as a table. Who exports it is decided outside."""

from deployments.messages.metrics import MetricKind, MetricSpec

CONNECTIONS = "drafter_connections"
REFUSED = "drafter_connections_refused"
MALFORMED = "drafter_frames_malformed"
SESSIONS = "drafter_sessions"
TOKENS_HELD = "drafter_tokens_held"
EVICTED = "drafter_sessions_evicted"
FORGOTTEN = "drafter_forgotten"
BLOCKS = "drafter_blocks"
TOKENS_PROPOSED = "drafter_tokens_proposed"
BATCH_SECONDS = "drafter_batch_seconds"

COUNTERS = (
    MetricSpec(name=CONNECTIONS, kind=MetricKind.GAUGE, help="Verifiers connected now."),
    MetricSpec(
        name=REFUSED,
        kind=MetricKind.COUNTER,
        help="Connections closed before they were let in.",
        labels=("reason",),
    ),
    MetricSpec(name=MALFORMED, kind=MetricKind.COUNTER, help="Frames that closed their connection."),
    MetricSpec(name=SESSIONS, kind=MetricKind.GAUGE, help="Requests held now."),
    MetricSpec(name=TOKENS_HELD, kind=MetricKind.GAUGE, help="Tokens of all requests held now."),
    MetricSpec(name=EVICTED, kind=MetricKind.COUNTER, help="Requests dropped to make room for others."),
    MetricSpec(name=FORGOTTEN, kind=MetricKind.COUNTER, help="Commits answered with Forgotten."),
    MetricSpec(name=BLOCKS, kind=MetricKind.COUNTER, help="Draft blocks sent, empty ones included."),
    MetricSpec(name=TOKENS_PROPOSED, kind=MetricKind.COUNTER, help="Tokens in all draft blocks sent."),
    MetricSpec(
        name=BATCH_SECONDS,
        kind=MetricKind.HISTOGRAM,
        help="Time from reading a batch of messages to having its answers.",
        buckets=(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5),
    ),
)
