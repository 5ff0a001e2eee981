"""The hub client against a server on this machine that speaks the parts of the hub's protocol it uses."""

from pathlib import Path

import pytest

from deployments.messages.errors import CheckpointError, ConfigError
from serve_app.catalog import HubModel
from serve_app.model_fetch import resolve_model
from serve_app.model_hub import fetch_from_hub
from tests.serve_app.hub_server import COMMIT, OLDER, SHARDED, WANTED, WEIGHTS, Failure, Hub


def quietly(_: str) -> None:
    """A report that nobody reads."""


def fetch(spec: str) -> Path:
    return resolve_model(spec, report=quietly)


def test_the_only_gguf_file(hub: Hub, hub_cache: Path) -> None:
    path = fetch("lab/one")

    assert path.name == "one.gguf"
    assert path.read_bytes() == WEIGHTS
    assert path.is_relative_to(hub_cache)


def test_second_time_downloads_nothing(hub: Hub) -> None:
    first = fetch("lab/one")
    hub.asked.clear()

    assert fetch("lab/one") == first
    assert hub.asked == ["GET /api/models/lab/one/revision/main"]


def test_one_of_several(hub: Hub) -> None:
    with pytest.raises(CheckpointError, match=r"has 2 \.gguf files.*several\.Q4_1\.gguf, sub/several\.Q8_0\.gguf"):
        fetch("lab/several")

    assert fetch("lab/several:sub/several.Q8_0.gguf").read_bytes() == WEIGHTS[::-1]


@pytest.mark.parametrize("spec", ["lab/split", "lab/split:s-00001-of-00003.gguf", "lab/split:s-00002-of-00003.gguf"])
def test_split_set_is_fetched_whole(hub: Hub, spec: str) -> None:
    path = fetch(spec)

    assert path.name == "s-00001-of-00003.gguf"
    assert [file.stat().st_size for file in sorted(path.parent.iterdir())] == [1000, 2000, 3000]


def test_safetensors_with_what_belongs_to_them(hub: Hub) -> None:
    folder = fetch("lab/sharded")

    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {name: SHARDED[name] for name in WANTED}
    fetched = [line.rsplit("/", 1)[-1] for line in hub.contents_asked()]
    assert all(name.startswith("model-") for name in fetched[-2:]), "weights come last"


def test_progress_is_told(hub: Hub) -> None:
    said: list[str] = []
    resolve_model("lab/sharded", report=said.append)

    assert said[0] == f"fetching lab/sharded at {COMMIT[:8]}: 8 files, 20.1 kB"
    assert said[-1] == "fetched 8 of 8: model-00002-of-00002.safetensors (11.0 kB)"
    assert len(said) == 9


@pytest.mark.parametrize("revision", ["v1", "refs/pr/7", OLDER])
def test_revision(hub: Hub, revision: str) -> None:
    hub.refs |= {"v1": OLDER, "refs/pr/7": OLDER}

    path = fetch(f"lab/one@{revision}:one.gguf")

    assert path.read_bytes() == WEIGHTS[::-1]
    assert path.parent.name == OLDER


def test_a_branch_that_moved_brings_only_what_changed(hub: Hub) -> None:
    fetch("lab/sharded")
    hub.repos["lab/sharded"][OLDER] = SHARDED | {"tokenizer.json": b'{"model": {"new": 1}}'}
    hub.refs["main"] = OLDER
    hub.asked.clear()

    folder = fetch("lab/sharded")

    assert (folder / "tokenizer.json").read_bytes() == b'{"model": {"new": 1}}'
    assert (folder / "model-00002-of-00002.safetensors").is_file()
    assert hub.contents_asked() == [f"GET /lab/sharded/resolve/{OLDER}/tokenizer.json"]


def test_cut_connection_is_resumed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is resumed is what was written, and that is whole chunks; the client's are 10 MB.
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 50_000)
    hub.failures.append(Failure(line=r"^GET /lab/one/.*\.gguf", cut_body_at=120_000))

    assert fetch("lab/one").read_bytes() == WEIGHTS
    assert hub.ranges == ["bytes=100000-"]


def test_wrong_checksum_is_not_kept(hub: Hub, hub_cache: Path) -> None:
    hub.served["one.gguf"] = WEIGHTS[:-1] + b"!"

    with pytest.raises(CheckpointError, match=r"one\.gguf of lab/one has sha256 [0-9a-f]{64}, expected [0-9a-f]{64}"):
        fetch("lab/one")

    assert [path for path in hub_cache.rglob("*") if path.is_file() and path.stat().st_size > 1000] == []
    hub.served.clear()
    assert fetch("lab/one").read_bytes() == WEIGHTS


def test_checksum_is_compared_where_the_listing_has_none(hub: Hub) -> None:
    hub.lists_sizes = False
    hub.served["one.gguf"] = WEIGHTS[:-1] + b"!"

    with pytest.raises(CheckpointError, match="it was not kept"):
        fetch("lab/one")


def test_checksum_in_the_catalog(hub: Hub) -> None:
    pinned = HubModel(repo="lab/sharded", sha256=(("config.json", "0" * 64),))
    with pytest.raises(CheckpointError, match=r"config\.json of lab/sharded has sha256 .*, expected 0000"):
        fetch_from_hub(pinned, report=quietly)

    other = HubModel(repo="lab/one", file="one.gguf", sha256=(("one.gguf", "f" * 64),))
    hub.asked.clear()
    with pytest.raises(CheckpointError, match="nothing was fetched"):
        fetch_from_hub(other, report=quietly)
    assert hub.contents_asked() == []


def test_token_goes_to_the_hub_and_nowhere_else(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    assert resolve_model("lab/one").read_bytes() == WEIGHTS
    assert hub.authorizations == {"hub": {"Bearer hf_secret"}, "content": {None}}

    hub.token = "another"
    hub.repos["lab/other"] = hub.repos["lab/one"]
    with pytest.raises(CheckpointError, match="does not accept the token in HF_TOKEN for lab/other") as caught:
        resolve_model("lab/other")
    assert "hf_secret" not in capfd.readouterr().err + str(caught.value)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("lab/none", r"lab/none has neither a \.gguf file nor config\.json with \*\.safetensors; choose"),
        ("lab/pickled", "pickled weights can run programs, so they are never read"),
        ("lab/one:two.gguf", r"lab/one has no file two\.gguf; it has one\.gguf"),
        ("lab/one@v9", "lab/one has no revision v9; check it, or leave out @v9"),
        ("lab/unknown", "no repository lab/unknown that you may read"),
        ("lab/unknown:x.gguf", "no repository lab/unknown that you may read"),
        ("lab/private", "no repository lab/private that you may read.*HF_TOKEN"),
        ("lab/gated", "lab/gated is gated.*HF_TOKEN"),
    ],
)
def test_one_sentence_says_what_is_wrong(hub: Hub, spec: str, says: str) -> None:
    with pytest.raises(CheckpointError, match=says) as caught:
        fetch(spec)

    assert "\n" not in str(caught.value)


def test_forbidden_without_a_reason(hub: Hub) -> None:
    hub.failures.append(Failure(line="one.gguf", status=403))
    with pytest.raises(CheckpointError, match="the token in HF_TOKEN may not read lab/one"):
        fetch("lab/one")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("lab/a--b", "'lab/a--b' is not the name of a hub repository"),
        ("lab/one@../x", r"'\.\./x' is not a revision of lab/one"),
        ("lab/one@/x", "'/x' is not a revision of lab/one"),
    ],
)
def test_name_the_hub_would_refuse(hub: Hub, spec: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        fetch(spec)
