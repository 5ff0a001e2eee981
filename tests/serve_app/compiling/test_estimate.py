"""Times are what the published rates make of bytes and operations, and nothing else."""

import pytest

from serve_app.compiling.chips import slice_named
from serve_app.compiling.estimate import time_of
from serve_app.compiling.schedule import Step
from tests.serve_app.compiling.making import work


def test_the_slower_of_memory_and_arithmetic_counts() -> None:
    one = time_of(work(moved=1638 * 10**7, int8=1836 * 10**9), on=slice_named("v6e-1"))
    assert one.memory == pytest.approx(0.01)
    assert one.arithmetic == pytest.approx(0.001)
    assert one.seconds == pytest.approx(0.01)
    assert one.bound == "HBM"


def test_operations_of_both_types_take_their_own_rate() -> None:
    one = time_of(work(moved=0, int8=1836 * 10**10, bf16=918 * 10**10), on=slice_named("v6e-1"))
    assert one.seconds == pytest.approx(0.02)
    assert one.bound == "arithmetic"


def test_attention_and_states_are_memory_too() -> None:
    one = time_of(work(moved=10**9, attention=10**9, states=10**9), on=slice_named("v5e-1"))
    assert one.memory == pytest.approx(3e9 / 819e9)


def test_exchanges_come_on_top() -> None:
    # Half of 800 GB/s goes out, over two of four links.
    one = time_of(work(moved=1638 * 10**7, wire=2 * 10**9), on=slice_named("v6e-4"))
    assert one.seconds == pytest.approx(0.01 + 0.01)


def test_what_arrives_during_an_exchange_is_not_counted_again() -> None:
    ahead = Step(moved=1638 * 10**7, begins="ahead")
    steps = (ahead, Step(wire=1 * 10**9), Step(awaits="ahead"), Step(wire=1 * 10**9))
    one = time_of(work(moved=1638 * 10**7, wire=2 * 10**9, steps=steps), on=slice_named("v6e-4"))
    assert one.exchange == pytest.approx(0.01)
    assert one.seconds == pytest.approx(0.01 + 0.005)


def test_products_do_not_go_on_during_an_exchange() -> None:
    steps = (Step(moved=1638 * 10**7, begins="ahead"), Step(wire=2 * 10**9))
    one = time_of(work(moved=1638 * 10**7, wire=2 * 10**9, int8=1836 * 10**10, steps=steps), on=slice_named("v6e-4"))
    assert one.seconds == pytest.approx(0.01 + 0.01)


def test_each_device_of_a_tpu7x_has_half_its_chip() -> None:
    one = time_of(work(moved=369 * 10**8), on=slice_named("tpu7x-4"))
    assert one.memory == pytest.approx(0.01)
