"""Drafters' fingerprints and chips' names."""

from dataclasses import dataclass, replace
from pathlib import Path

import jax
import pytest

from deployments.lm.drafting.ngram import NgramSettings
from serve_app.gating.file_hashes import FileHashes
from serve_app.gating.fingerprints import chip_key, compiler_flags, drafter_fingerprint, processor_key, versions
from serve_app.gating.keys import ChipKey

X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9R14
stepping\t: 1
flags\t\t: fpu sse4_2 avx avx2 fma f16c avx512f avx512_vnni smep smap bmi2

processor\t: 1
model name\t: another
"""
ARM = """processor\t: 0
Features\t: fp asimd asimddp sve2 i8mm bf16 crc32
CPU implementer\t: 0x41
CPU part\t: 0xd4f
CPU revision\t: 1
"""


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    model: str
    most: int = 4


@dataclass(frozen=True, kw_only=True)
class FakeDevice:
    platform: str
    device_kind: str


def test_settings_count_and_so_does_their_kind(tmp_path: Path) -> None:
    hashes = FileHashes(tmp_path)

    @dataclass(frozen=True, kw_only=True)
    class OtherSettings(NgramSettings):
        pass

    settings = NgramSettings(max_n=3, min_n=2)
    found = [drafter_fingerprint(one, hashes=hashes) for one in (settings, NgramSettings(), OtherSettings())]
    assert found[0] == found[1] != found[2]
    for other in (replace(settings, max_n=4), replace(settings, min_n=1), replace(settings, max_k=3)):
        assert drafter_fingerprint(other, hashes=hashes) != found[0]


def test_files_count_by_content_and_not_by_place(tmp_path: Path) -> None:
    def found(name: str) -> str:
        settings = ModelSettings(model=name)
        return drafter_fingerprint(settings, hashes=FileHashes(tmp_path / "kept"), files={"model": [tmp_path / name]})

    (tmp_path / "a").write_bytes(b"weights")
    (tmp_path / "b").write_bytes(b"weights")
    assert found("a") == found("b")
    (tmp_path / "b").write_bytes(b"Weights")
    assert found("a") != found("b")
    with pytest.raises(KeyError, match="has no setting 'path'"):
        drafter_fingerprint(ModelSettings(model="a"), hashes=FileHashes(tmp_path), files={"path": []})


def test_a_processor_is_known_by_model_and_abilities() -> None:
    assert processor_key(X86, threads=4) == ChipKey(
        kind="AMD EPYC 9R14 (family 25, model 17, stepping 1)",
        features=("avx", "avx2", "avx512_vnni", "avx512f", "f16c", "fma", "sse4_2"),
        threads=4,
    )
    arm = processor_key(ARM, threads=1)
    assert arm.kind.endswith("(implementer 0x41, part 0xd4f, revision 1)")
    assert arm.features == ("asimd", "asimddp", "bf16", "i8mm", "sve2")
    assert processor_key("", threads=1).kind


def test_this_processor_has_a_name(tmp_path: Path) -> None:
    here = chip_key(jax.devices("cpu")[0])
    assert here.threads > 0
    assert here.kind
    assert chip_key(jax.devices("cpu")[0], cpuinfo=tmp_path / "none").features == ()


def test_another_device_says_what_it_is() -> None:
    device = FakeDevice(platform="tpu", device_kind="TPU v6e")
    assert chip_key(device) == ChipKey(kind="TPU v6e")
    assert set(versions(device)) == {"jax", "jaxlib", "libtpu"}


def test_versions_are_those_of_the_packages() -> None:
    found = versions(FakeDevice(platform="cpu", device_kind="cpu"))
    assert set(found) == {"jax", "jaxlib"}
    assert found["jax"].startswith(jax.__version__)


def test_what_the_compiler_is_told_counts_but_for_what_it_writes() -> None:
    environment = {
        "XLA_FLAGS": " --xla_b=1  --xla_dump_to=/tmp/x --xla_a=2",
        "LIBTPU_INIT_ARGS": "--xla_tpu_c=3",
        "HOME": "--x",
    }
    assert compiler_flags(environment) == ("--xla_a=2", "--xla_b=1", "--xla_tpu_c=3")
    assert compiler_flags({}) == ()
