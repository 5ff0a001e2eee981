"""What a replica asks of Ray for its TPU chips, and the environment they are found in. Knows no deployments.

Ray names the chips a replica may see (`TPU_VISIBLE_CHIPS`), but says how they are wired for one or two of them only;
a process with four of a host's eight would take them for the whole host. The bounds are set when the replica's process
starts, so before anything there imports JAX.
"""

import re
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deployments.messages.errors import ConfigError

# How chips of one host are wired: x, y, z. Halves and quarters of a host are such rectangles too.
_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
# How the kernel shows chips: up to v4, and from v5e on.
_CHIP_DEVICES = ("accel*", "vfio/[0-9]*")
_VIRTUAL = re.compile(r"--xla_force_host_platform_device_count=(\d{1,6})")
CHIP_COUNTS = tuple(_BOUNDS)
"""How many chips of a host one process can have."""


def chip_environment(chips: int, /) -> dict[str, str]:
    """Environment variables for a process with so many chips of a host; none for a process without chips.

    Raises:
        ValueError: chips of a host cannot be had in that number.
    """
    if chips == 0:
        return {}
    if chips not in _BOUNDS:
        raise ValueError(f"{chips} TPU chips of a host cannot work together; take {_listed()}")
    # libtpu knows both names, and Ray sets the older pair itself for one or two chips.
    return {
        "JAX_PLATFORMS": "tpu,cpu",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": _BOUNDS[chips],
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_CHIPS_PER_HOST_BOUNDS": _BOUNDS[chips],
        "TPU_HOST_BOUNDS": "1,1,1",
    }


def settle_platform(environment: MutableMapping[str, str], /, *, devices: Path = Path("/dev")) -> None:
    """Without chips JAX need not look for them: where libtpu is installed, it would load it and print what it misses.

    What the environment already says stays. To be called before JAX is imported.
    """
    has_chips = any(next(devices.glob(pattern), None) is not None for pattern in _CHIP_DEVICES)
    if not has_chips and find_spec("libtpu") is not None:
        environment.setdefault("JAX_PLATFORMS", "cpu")


def check_devices(environment: Mapping[str, str], /, *, wanted: int) -> None:
    """Refuses at once what a replica without chips would refuse after Ray has started.

    Raises:
        ConfigError: there are fewer devices; a processor is one, unless JAX is told to take it for several.
    """
    if wanted == 1 or environment.get("JAX_PLATFORMS") != "cpu":
        return
    told = _VIRTUAL.findall(environment.get("XLA_FLAGS", ""))
    count = int(told[-1]) if told else 1
    if wanted > count:
        raise ConfigError(
            f"{wanted} devices are to share the model, and this machine has {count}, a processor; leave out --tp, or "
            f"set XLA_FLAGS=--xla_force_host_platform_device_count={wanted} to try it"
        )


def actor_options(*, cpus: float, chips: int = 0) -> dict[str, Any]:
    """`ray_actor_options` of a replica."""
    options: dict[str, Any] = {"num_cpus": cpus}
    if chips:
        options["resources"] = {"TPU": chips}
        options["runtime_env"] = {"env_vars": chip_environment(chips)}
    return options


def _listed() -> str:
    *most, last = map(str, CHIP_COUNTS)
    return f"{', '.join(most)} or {last}"
