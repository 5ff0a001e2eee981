"""What operators see of the batch, the queue and the pages: the scheduler's numbers as metrics. Knows no requests."""

from deployments.messages.metrics import Metrics
from deployments.verifier.scheduler import Scheduler


class SchedulerGauges:
    """Puts the scheduler's numbers into metrics."""

    def __init__(self, scheduler: Scheduler, *, metrics: Metrics) -> None:
        self._scheduler = scheduler
        self._metrics = metrics
        self._evicted = 0

    def refresh(self) -> None:
        """Makes the metrics say what the scheduler does now; called in every step."""
        scheduler, metrics = self._scheduler, self._metrics
        metrics.set("active_slots", value=len(scheduler.active))
        metrics.set("waiting_requests", value=scheduler.waiting)
        metrics.set("pages_in_use", value=scheduler.pages_in_use)
        metrics.set("pages_cached", value=scheduler.pages_cached)
        evicted = scheduler.pages_evicted
        if evicted > self._evicted:
            metrics.add("pages_evicted", amount=evicted - self._evicted)
            self._evicted = evicted
