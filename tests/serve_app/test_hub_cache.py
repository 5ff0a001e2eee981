from pathlib import Path

import pytest

from deployments.messages.errors import CheckpointError
from serve_app.hub_cache import CachedRepo, cached_repo, is_commit, require_whole
from serve_app.hub_files import Choice

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cached(tmp_path: Path) -> CachedRepo:
    """A cache as the client's documentation describes it."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "refs" / "refs" / "pr").mkdir(parents=True)
    (tmp_path / "refs" / "main").write_text(COMMIT)
    (tmp_path / "refs" / "refs" / "pr" / "7").write_text(COMMIT)
    folder = tmp_path / "snapshots" / COMMIT
    (folder / "sub").mkdir(parents=True)
    for name in ("config.json", "sub/x.gguf"):
        blob = tmp_path / "blobs" / name.replace("/", "_")
        blob.write_text("{}")
        (folder / name).symlink_to(blob)
    (folder / "lost.json").symlink_to(tmp_path / "blobs" / "gone")
    return CachedRepo(store=tmp_path)


def test_where_the_client_keeps_a_repository() -> None:
    assert cached_repo("lab/x.y").store.name == "models--lab--x.y"


def test_revisions(cached: CachedRepo) -> None:
    assert cached.commit("main") == cached.commit("refs/pr/7") == cached.commit(COMMIT) == COMMIT
    assert cached.commit("elsewhere") is None
    (cached.store / "refs" / "damaged").write_bytes(b"\xff")
    assert cached.commit("damaged") is None
    assert is_commit(COMMIT)
    assert not is_commit(COMMIT[:7])


def test_names_are_of_files_that_are_there(cached: CachedRepo) -> None:
    assert cached.names(COMMIT) == ["config.json", "sub/x.gguf"]
    assert cached.names("0" * 40) == []


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ('{"weight_map": {"a": "model-1.safetensors", "b": "other.safetensors"}}', "1 of its files are missing: other"),
        ('{"weight_map": [1]}', None),
        ("not json", None),
        ('{"weight_map": {"a": 7}}', None),
    ],
)
def test_index_says_what_is_missing(tmp_path: Path, index: str, says: str | None) -> None:
    for name in ("config.json", "tokenizer.json", "model-1.safetensors"):
        (tmp_path / name).touch()
    (tmp_path / "model.safetensors.index.json").write_text(index)
    choice = Choice(files=("config.json", "model.safetensors.index.json", "model-1.safetensors"), entry=None)

    if says is None:
        require_whole(tmp_path, choice=choice, repo="lab/x")
    else:
        with pytest.raises(CheckpointError, match=says):
            require_whole(tmp_path, choice=choice, repo="lab/x")


def test_tokenizer_is_part_of_it(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).touch()
    choice = Choice(files=("config.json", "model.safetensors"), entry=None)

    with pytest.raises(CheckpointError, match=r"missing: tokenizer\.json"):
        require_whole(tmp_path, choice=choice, repo="lab/x")


def test_numbering_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "x-00001-of-00002.gguf").touch()
    choice = Choice(files=("x-00001-of-00002.gguf",), entry="x-00001-of-00002.gguf")

    with pytest.raises(CheckpointError, match=r"missing: x-00002-of-00002\.gguf"):
        require_whole(tmp_path, choice=choice, repo="lab/x")
