"""Which heads each device has: all of them are somewhere, each with its key, and no device has more than another."""

import numpy as np
import pytest

from deployments.lm.head_plan import NOTHING, device_major, even, plan_heads, spread

SHAPES = ((9, 3), (8, 2), (4, 2), (4, 4), (32, 8), (48, 16), (24, 4), (6, 1), (14, 2))


@pytest.mark.parametrize("shards", [1, 2, 4, 8])
@pytest.mark.parametrize(("heads", "kv_heads"), SHAPES)
def test_every_query_is_somewhere_beside_its_key(heads: int, kv_heads: int, shards: int) -> None:
    plan = plan_heads(heads=heads, kv_heads=kv_heads, shards=shards)
    assert plan.queries.shape == (shards * plan.heads,)
    assert plan.keys.shape == (shards * plan.kv_heads,)
    real = plan.queries[plan.queries != NOTHING]
    assert sorted(real) == list(range(heads))
    for place, query in enumerate(plan.queries):
        if query != NOTHING:
            assert plan.keys[place // plan.group] == query // (heads // kv_heads)


@pytest.mark.parametrize("shards", [1, 2, 4, 8])
def test_what_divides_is_neither_filled_up_nor_repeated(shards: int) -> None:
    plan = plan_heads(heads=32, kv_heads=8, shards=shards)
    assert plan.keys.tolist() == list(range(8))
    assert plan.queries.tolist() == list(range(32))
    assert not plan.is_ragged


def test_nine_and_three_heads() -> None:
    """SmolLM2's: filled up on 2 and 4 devices; on 8 a key head is on two, one of which has a query less."""
    assert plan_heads(heads=9, kv_heads=3, shards=2).keys.tolist() == [0, 1, 2, NOTHING]
    assert plan_heads(heads=9, kv_heads=3, shards=4).heads == 3
    plan = plan_heads(heads=9, kv_heads=3, shards=8)
    assert plan.keys.tolist() == [0, 0, 1, 1, 2, 2, NOTHING, NOTHING]
    assert plan.queries.tolist()[:4] == [0, 1, 2, NOTHING]
    assert plan.is_ragged


def test_few_keys_are_on_several_devices() -> None:
    """Qwen3.8-27B's 24 and 4 heads on 8."""
    plan = plan_heads(heads=24, kv_heads=4, shards=8)
    assert plan.keys.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert plan.heads == 3


def test_elements_of_heads() -> None:
    assert spread(np.asarray([1, NOTHING]), size=2, first=10).tolist() == [12, 13, NOTHING, NOTHING]


def test_even_shares() -> None:
    assert even(5, shards=2, multiple=2).tolist() == [0, 1, 2, 3, 4, NOTHING, NOTHING, NOTHING]
    assert even(8, shards=2, multiple=2).tolist() == list(range(8))


def test_each_device_has_its_share_of_every_part() -> None:
    parts = [np.asarray([0, 1, 2, 3]), np.asarray([10, 11])]
    assert device_major(parts, shards=2).tolist() == [0, 1, 10, 2, 3, 11]
