import pytest

from deployments.ingress.auth import ApiKeys, key_digest
from deployments.ingress.errors import Unauthorized


@pytest.mark.parametrize("header", ["Bearer one", "bearer two", "Bearer  two ", "BEARER one"])
def test_any_of_the_keys_opens(header: str) -> None:
    ApiKeys(
        digests=(
            key_digest("one"),
            key_digest("two"),
        )
    ).check(header)


@pytest.mark.parametrize(
    "header", [None, "", "one", "Basic one", "Bearer", "Bearer ", "Bearer onee", "Bearer on", "Bearer \udcff"]
)
def test_anything_else_does_not(header: str | None) -> None:
    with pytest.raises(Unauthorized):
        ApiKeys(
            digests=(
                key_digest("one"),
                key_digest("two"),
            )
        ).check(header)


def test_without_keys_everything_opens() -> None:
    ApiKeys(digests=()).check(None)
