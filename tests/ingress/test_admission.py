import contextlib

import pytest

from deployments.ingress.admission import Admission
from deployments.ingress.counters import INGRESS_METRICS, Counters
from deployments.messages.errors import QueueFull
from tests.ingress.fakes import RegistryMetrics


def test_room_is_counted_in_choices_and_given_back_whatever_happens() -> None:
    metrics = RegistryMetrics(INGRESS_METRICS)
    admission = Admission(limit=3, retry_after_s=7, counters=Counters(metrics=metrics))
    with contextlib.suppress(RuntimeError), admission.admit(2):
        assert metrics.value("ingress_in_flight") == 2
        with pytest.raises(QueueFull) as caught, admission.admit(2):
            pytest.fail("there was no room")
        assert caught.value.retry_after_s == 7
        with admission.admit(1):
            assert admission.in_flight == 3
        raise RuntimeError
    assert admission.in_flight == 0
    assert metrics.value("ingress_in_flight") == 0
