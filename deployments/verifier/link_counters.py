"""What the links to drafters count; rows of the verifier's metric table."""

from deployments.messages.metrics import MetricKind, MetricSpec

EXCHANGE_SECONDS = "draft_exchange_seconds"
LATE = "draft_blocks_late"
STALE = "draft_blocks_stale"
MALFORMED = "draft_malformed"
FORGOTTEN = "draft_requests_forgotten"
LINKS_LIVE = "drafter_links_live"
LINKS_PARKED = "drafter_links_parked"
LINKS_LOST = "drafter_links_lost"
CONNECTS = "drafter_link_connects"

LINK_COUNTERS = (
    MetricSpec(
        name=EXCHANGE_SECONDS,
        kind=MetricKind.HISTOGRAM,
        help="Time the engine spent on a round of drafts: asking, and waiting for the last block or the deadline.",
        buckets=(0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
    ),
    MetricSpec(name=LATE, kind=MetricKind.COUNTER, help="Blocks that were not there at the deadline."),
    MetricSpec(name=STALE, kind=MetricKind.COUNTER, help="Blocks dropped because the request had moved on or ended."),
    MetricSpec(
        name=MALFORMED,
        kind=MetricKind.COUNTER,
        help="Blocks dropped because they broke the protocol, and frames that cost their link.",
    ),
    MetricSpec(name=FORGOTTEN, kind=MetricKind.COUNTER, help="Requests a drafter did not know any more."),
    MetricSpec(name=LINKS_LIVE, kind=MetricKind.GAUGE, help="Drafters asked every round."),
    MetricSpec(name=LINKS_PARKED, kind=MetricKind.GAUGE, help="Drafters left alone because they were late."),
    MetricSpec(name=LINKS_LOST, kind=MetricKind.COUNTER, help="Links that broke while in use."),
    MetricSpec(
        name=CONNECTS,
        kind=MetricKind.COUNTER,
        help="Attempts to reach a drafter: connected, failed, or restored after it had been late.",
        labels=("outcome",),
    ),
)
