"""Which parts of a record are held against this machine and a deployment."""

from pathlib import Path

import msgspec

from deployments.lm.drafting.ngram import NgramSettings
from serve_app.config import AppConfig
from serve_app.gating.file_hashes import FileHashes
from serve_app.gating.fingerprints import versions
from serve_app.gating.gatekeeper import DrafterChoice
from serve_app.gating.here import Here, this_deployment, this_machine
from serve_app.gating.keys import ExactnessKey
from serve_app.gating.running import profit_key
from tests.serve_app.gating.making import KEY


def deployment(path: Path, *, hashes: FileHashes, drafter: str = "ngram", **verifier: object) -> Here:
    config = AppConfig.model_validate({"model": str(path), "drafter": {"kind": drafter}, "verifier": verifier})
    return this_deployment(config, hashes=hashes)


def test_a_record_of_this_machine_lacks_nothing_and_others_say_what() -> None:
    here = this_machine()
    key = msgspec.structs.replace(KEY, **here.parts)
    assert here.differences(key) == ()
    assert here.differences(msgspec.structs.replace(key, jax="99", slots=3)) == (f"jax 99 != {here.parts['jax']}",)
    assert {"programs", "slots", "model"} <= set(here.unknown)
    assert here.parts["jax"] == versions_of_jax()


def versions_of_jax() -> str:
    class Device:
        platform, device_kind = "cpu", "cpu"

    return versions(Device())["jax"]


def test_a_deployment_is_compared_in_all_but_what_loading_tells(golden_llama: Path, tmp_path: Path) -> None:
    path, hashes = golden_llama / "llama.f16.gguf", FileHashes(tmp_path)
    here = deployment(path, hashes=hashes, context=128, page_size=256, slots=4, draft_k=3, kernels="xla")
    assert here.unknown == ("programs",)
    assert (here.parts["architecture"], here.parts["kernels"]) == ("llama", "xla")
    key: ExactnessKey = msgspec.structs.replace(KEY, **here.parts)
    assert (key.page_size, key.cache_pages, key.draft_rows) == (128, 4, 8)
    assert here.differences(key) == ()
    other = deployment(path, hashes=hashes, context=128, slots=2, draft_k=2)
    told = {each.split()[0] for each in other.differences(key)}
    assert told - {"kernels"} == {"page_size", "slots", "draft_k", "draft_rows"}


def test_a_pairing_is_compared_with_the_drafter_that_would_run(golden_llama: Path, tmp_path: Path) -> None:
    path, hashes = golden_llama / "llama.f16.gguf", FileHashes(tmp_path)
    here = deployment(path, hashes=hashes, context=128)
    choice = DrafterChoice(kind="ngram", settings=NgramSettings(max_k=7))
    program: ExactnessKey = msgspec.structs.replace(KEY, **here.parts)
    key = profit_key(program, kind="ngram", settings=choice.settings)
    assert here.differences(key) == ()
    fewer = deployment(path, hashes=hashes, context=128, draft_k=3).differences(key)
    assert {each.split()[0] for each in fewer} == {"draft_k", "drafter.fingerprint", "k_max"}
    strange = msgspec.structs.replace(key, drafter=msgspec.structs.replace(key.drafter, kind="mtp"))
    assert here.differences(strange) == ("drafter.kind mtp != ngram",)
    assert this_machine().pairings is None
