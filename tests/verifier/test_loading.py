"""From a file to a verifier: settings that do not fit are refused before anything is compiled, and small ones work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.lm.quant.linear import Precision
from deployments.messages.errors import CheckpointError, ConfigError
from deployments.messages.gates import ProgramFacts
from deployments.messages.generation import GenerateRequest, SamplingSettings
from deployments.verifier import spreading
from deployments.verifier.drafts import NoDrafts
from deployments.verifier.loading import load_model
from deployments.verifier.sizing import ModelSettings
from tests.verifier.serving import Tallies, serve


@pytest.fixture
def settings(golden_llama_rope3: Path) -> ModelSettings:
    return ModelSettings(
        model_path=str(golden_llama_rope3 / "llama_rope3.f32.gguf"),
        precision=Precision.F32,
        slots=1,
        context=16,
        page_size=128,
        draft_k=0,
        ladder=(8,),
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"context": 10**6}, "a context of 1000000 was asked for, but the model was made for"),
        ({"context": 100, "page_size": 32}, "context 100 must be a multiple of the page size 32"),
        ({"slots": 0}, "must each be at least 1"),
        ({"context": 0}, "must each be at least 1"),
        ({"page_size": -1}, "must each be at least 1"),
        (
            {"cache_pages": 1, "page_size": 8},
            "cache_pages 1 hold 8 tokens, less than one context of 16; set at least 2",
        ),
        (
            {"cache_pages": 10**12},
            "of weights, .* of cache .* do not fit the .* that are free; set verifier.cache_pages",
        ),
        ({"ladder": (4,)}, "must rise from at least 8 rows"),
        ({"slots": 9}, "fewer than the 9 slots"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: ModelSettings, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_model(replace(settings, **changes), progress=lambda text: None)


def test_a_missing_file_is_refused(settings: ModelSettings, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        load_model(replace(settings, model_path=str(tmp_path / "none.gguf")), progress=lambda text: None)


def test_weights_that_cannot_fit_are_refused_before_they_are_read(
    settings: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with 64 KiB left."""
    monkeypatch.setattr(spreading, "free_host_memory", lambda: 2**16)
    said: list[str] = []
    with pytest.raises(ConfigError, match=r"MiB of weights do not fit the 0\.1 MiB that are free; take a"):
        load_model(settings, progress=said.append)
    assert said == ["reading llama_rope3.f32.gguf"]


def test_fewer_pages_than_slots_could_fill(settings: ModelSettings) -> None:
    """The cache is as small as it is said to be, and replies are made in turn."""
    model = load_model(replace(settings, slots=4, page_size=4, cache_pages=5), progress=lambda text: None)
    assert model.programs.shape.pages == 6
    requests = [
        GenerateRequest(request_id=f"r{number}", prompt_ids=(1, 2, number), max_tokens=13) for number in range(4)
    ]
    replies = serve(model.engine(drafts=NoDrafts(), metrics=Tallies()), requests)
    assert [len(reply.tokens) for reply in replies.values()] == [13] * 4


def test_the_smallest_verifier_there_can_be(settings: ModelSettings, golden_llama_rope3: Path) -> None:
    """One slot of one page, shorter than the page asked for; and it says how far it is."""
    said: list[str] = []
    model = load_model(settings, progress=said.append)

    assert model.settings.page_size == model.settings.context == 16
    assert (model.architecture, model.config.vocabulary) == ("llama", 512)
    assert said[0] == "reading llama_rope3.f32.gguf"
    assert "compiled 2 of 2 programs" in said
    assert any(text.startswith("memory: ") and text.endswith("for the largest window") for text in said)
    assert said[-1].startswith("ready after")
    request = GenerateRequest(
        request_id="r", prompt_ids=(1, 2, 3), max_tokens=13, sampling=SamplingSettings(temperature=0.0)
    )
    replies = serve(model.engine(drafts=NoDrafts(), metrics=Tallies()), [request])
    assert len(replies["r"].tokens) == 13


@pytest.mark.slow
def test_facts_are_the_same_for_the_same_programs_and_no_others(settings: ModelSettings) -> None:
    """Loaded twice, and then with other numbers, each of which compiles to something else."""

    def loaded(**changed: Any) -> ProgramFacts:
        return load_model(replace(settings, **changed), progress=lambda text: None).facts()

    first = loaded()
    assert first == loaded()
    assert first.model_files == (str(Path(settings.model_path).absolute()),)
    assert (first.platform, first.context, first.cache_pages) == ("cpu", 16, 1)
    assert loaded(precision=Precision.BF16).programs != first.programs
    deeper = loaded(draft_k=3)
    assert (deeper.draft_k, deeper.draft_rows) == (3, 3 * settings.slots)
    assert deeper.programs != first.programs
    name, *library = first.kernels.split()
    assert (name, len(library)) in {("xla", 0), ("native", 1)}
