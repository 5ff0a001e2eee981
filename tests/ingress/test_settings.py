from typing import Any

import pytest

from deployments.ingress.auth import key_digest
from deployments.ingress.settings import IngressSettings
from deployments.messages.errors import ConfigError


@pytest.mark.parametrize(
    "fields",
    [
        {"max_in_flight": 0},
        {"max_choices": 0},
        {"max_choices": 300},
        {"max_body_bytes": -1},
        {"request_timeout_s": 0.0},
        {"gather_timeout_s": float("nan")},
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        IngressSettings(**fields)


def test_keys_do_not_show() -> None:
    assert "hunter2" not in repr(IngressSettings(api_key_digests=(key_digest("hunter2"),)))
