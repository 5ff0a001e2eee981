import re
from pathlib import Path

import pytest

from serve_app.catalog import CATALOG, DEFAULT_MODEL, Catalog, CatalogEntry, HubModel, PackagedModel, catalog_lines


def test_names_are_unique_and_can_be_typed() -> None:
    names = [entry.name for entry in CATALOG]

    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in names)
    assert DEFAULT_MODEL in names


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)
def test_entry_is_whole(entry: CatalogEntry) -> None:
    """A pinned revision is a commit, and a checksum is one."""
    source = entry.source
    if isinstance(source, PackagedModel):
        assert re.fullmatch(r"[0-9a-f]{64}", source.sha256)
        return
    assert isinstance(source, HubModel)
    assert re.fullmatch(r"[A-Za-z-]+/[\w.-]+", source.repo)
    assert source.revision == "main" or re.fullmatch(r"[0-9a-f]{40}", source.revision)
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for _, digest in source.sha256)
    # A checksum holds for one commit alone.
    assert source.revision != "main" or not source.sha256


def test_capitals_do_not_matter() -> None:
    entry = Catalog().find("QWEN3.8-27B")

    assert entry is not None
    assert entry.name == "qwen3.8-27b"


@pytest.mark.parametrize(
    ("name", "near"), [("qwen38-27b", "qwen3.8-27b"), ("llama-3-8b", "llama-3.1-8b"), ("gemma3-4b", "gemma-3-4b")]
)
def test_near_names_are_offered(name: str, near: str) -> None:
    said = str(Catalog().unknown(name))

    assert f"'{name}' is not a model (did you mean" in said
    assert near in said
    assert "outrider models" in said


def test_nothing_near() -> None:
    assert "did you mean" not in str(Catalog().unknown("zzzzzzzzzzzzzz"))


def test_entries_can_be_ones_own() -> None:
    assert Catalog(entries=()).find(DEFAULT_MODEL) is None


def test_list_has_a_line_for_each() -> None:
    titles, *lines = catalog_lines(Catalog())

    assert titles.split() == ["name", "parameters", "context", "architecture", "licence", "from"]
    assert [line.split()[0] for line in lines] == [entry.name for entry in CATALOG]
    gated = next(line for line in lines if line.startswith("llama-3.1-8b "))
    assert re.split(r"  +", gated)[-2:] == ["Llama 3.1 Community, gated", "meta-llama/Llama-3.1-8B-Instruct"]


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)
def test_every_entry_is_documented(entry: CatalogEntry) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "models.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith(f"| `{entry.name}` |"))

    assert str(entry.context) in line
    assert entry.licence in line
    assert ("gated" in line) == entry.is_gated
    if isinstance(entry.source, HubModel):
        assert f"`{entry.source.repo}`" in line
        assert f"`{entry.source.revision[:8]}`" in line
