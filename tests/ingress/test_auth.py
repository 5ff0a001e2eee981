import pytest

from deployments.ingress.auth import ApiKeys
from deployments.ingress.errors import Unauthorized


@pytest.mark.parametrize("header", ["Bearer one", "bearer two", "Bearer  two ", "BEARER one"])
def test_any_of_the_keys_opens(header: str) -> None:
    ApiKeys(keys=("one", "two")).check(header)


@pytest.mark.parametrize(
    "header", [None, "", "one", "Basic one", "Bearer", "Bearer ", "Bearer onee", "Bearer on", "Bearer \udcff"]
)
def test_anything_else_does_not(header: str | None) -> None:
    with pytest.raises(Unauthorized):
        ApiKeys(keys=("one", "two")).check(header)


def test_without_keys_everything_opens() -> None:
    ApiKeys(keys=()).check(None)
