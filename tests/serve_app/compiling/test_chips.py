"""The table of chips against itself, JAX's own and the compiler."""

import pytest
from jax.experimental.pallas import tpu as pltpu

from deployments.lm.topologies import absent_devices
from deployments.messages.errors import ConfigError
from serve_app.compiling.chips import CHIPS, slice_named, slices

VERSIONS = {
    "v5e": (pltpu.ChipVersion.TPU_V5E, 1),
    "v5p": (pltpu.ChipVersion.TPU_V5P, 2),
    "v6e": (pltpu.ChipVersion.TPU_V6E, 1),
    "tpu7x": (pltpu.ChipVersion.TPU_7X, 2),
}


@pytest.mark.parametrize("one", slices(), ids=lambda one: one.name)
def test_the_compiler_knows_every_slice(one: object) -> None:
    found = slice_named(getattr(one, "name"))  # noqa: B009 - pytest has no type for what it parametrizes
    assert len(absent_devices(found.topology)) == found.devices


@pytest.mark.parametrize("name", CHIPS)
def test_rates_agree_with_jax(name: str) -> None:
    version, cores = VERSIONS[name]
    own, theirs = CHIPS[name], pltpu.get_tpu_info_for_chip(version, 1)
    # Google's page about v5p says 2765 GB/s, JAX's table 2460.
    assert own.hbm == pytest.approx(theirs.mem_bw_bytes_per_second * cores, rel=0.13)
    assert own.bf16 == pytest.approx(theirs.bf16_ops_per_second * cores, rel=0.01)
    assert own.vmem == theirs.vmem_capacity_bytes
    if theirs.int8_ops_per_second:
        assert own.int8 == pytest.approx(theirs.int8_ops_per_second * cores, rel=0.01)
    # What the compiler lets a program use is a little less than there is.
    assert 0.9 < own.usable / (theirs.hbm_capacity_bytes * cores) < 1


def test_an_unknown_slice_is_named_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"'v4-8' is no slice .* v5e-1, v5e-4, v5e-8, v5p-1, v5p-4, v6e-1"):
        slice_named("v4-8")


def test_two_devices_share_a_tpu7x_chip() -> None:
    found = slice_named("tpu7x-4")
    assert found.devices == 8
    assert found.usable * 8 == found.chip.usable * 4
