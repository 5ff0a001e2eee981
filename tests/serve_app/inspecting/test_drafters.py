from pathlib import Path

import pytest

from deployments.lm.checkpoint.opening import open_checkpoint
from serve_app import drafter_config
from serve_app.inspecting.drafters import RUNNING, Drafter, drafters_for
from serve_app.inspecting.header import read_header
from serve_app.inspecting.tokens import read_tokenizer
from serve_app.sections import Section

PROOFS = {"off", "random", "oracle"}


def drafters(path: Path, *, refusal: str | None = None) -> dict[str, Drafter]:
    checkpoint = open_checkpoint(path)
    found = drafters_for(read_header(checkpoint), tokenizer=read_tokenizer(checkpoint), refusal=refusal)
    return {one.kind: one for one in found}


def test_kinds_are_those_that_can_be_configured() -> None:
    sections = [
        value for value in vars(drafter_config).values() if isinstance(value, type) and issubclass(value, Section)
    ]
    kinds = {section.model_fields["kind"] for section in sections if "kind" in section.model_fields}
    names = {name for field in kinds for name in field.annotation.__args__}  # type: ignore[union-attr]  # a Literal
    # `auto` is a choice among them.
    assert names - PROOFS - {"auto"} == RUNNING


def test_only_ngram_runs(golden_llama: Path) -> None:
    found = drafters(golden_llama)

    assert {kind for kind, one in found.items() if one.runs} == {"ngram"}
    assert not found["mtp"].could_apply
    assert "carries no mtp" in found["mtp"].reason
    assert "the same 500 tokens; this version does not run it yet" in found["draft_model"].reason


@pytest.mark.parametrize("name", ["", "qwen3_5.f16.gguf"])
def test_mtp_layers_are_found(goldens: Path, name: str) -> None:
    mtp = drafters(goldens / "qwen3_5" / name)["mtp"]

    assert mtp.could_apply
    assert mtp.reason == "the checkpoint carries 15 tensors of an MTP layer; this version does not run it yet"


def test_a_network_that_does_not_run(golden_llama: Path) -> None:
    found = drafters(golden_llama, refusal="unknown")

    assert not any(one.runs for one in found.values())
    assert "does not run the network" in found["ngram"].reason
