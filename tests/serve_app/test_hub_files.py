import pytest

from deployments.messages.errors import CheckpointError
from serve_app.hub_files import choose, part_names

SHARDS = ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"]


def test_part_names() -> None:
    assert part_names("a/b-00002-of-00003.gguf") == tuple(f"a/b-0000{n}-of-00003.gguf" for n in (1, 2, 3))
    assert part_names("b.gguf") == ("b.gguf",)
    assert part_names("b-2-of-3.gguf") == ("b-2-of-3.gguf",)


@pytest.mark.parametrize(
    ("names", "weights"),
    [
        (["config.json", "model.safetensors", "model.fp32.safetensors"], ["model.safetensors"]),
        # As Qwen3.5 names them.
        (["config.json", "model.safetensors-00001-of-00001.safetensors"], None),
        (["config.json", "model-1.safetensors", "consolidated.safetensors", "adapter_model.safetensors"], None),
        (["config.json", "model.safetensors", "model.gguf"], ["model.safetensors"]),
    ],
)
def test_weights_of_a_repository(names: list[str], weights: list[str] | None) -> None:
    choice = choose(names, repo="lab/x", file=None)

    assert choice.entry is None
    assert choice.files == ("config.json", *(weights or [names[1]]))


def test_index_belongs_to_shards_alone() -> None:
    assert "model.safetensors.index.json" in choose(SHARDS, repo="lab/x", file=None).files
    with_whole = [*SHARDS, "model.safetensors"]
    assert choose(with_whole, repo="lab/x", file=None).files == ("config.json", "model.safetensors")


def test_nothing_outside_the_root_and_nothing_pickled() -> None:
    names = ["config.json", "model.safetensors", "sub/tokenizer.json", "pytorch_model.bin", "optimizer.pt", "run.py"]

    assert choose(names, repo="lab/x", file=None).files == ("config.json", "model.safetensors")


def test_one_file_of_many_formats() -> None:
    names = ["config.json", "model.safetensors", "x.gguf"]

    choice = choose(names, repo="lab/x", file="x.gguf")

    assert (choice.files, choice.entry) == (("x.gguf",), "x.gguf")


def test_projector_is_no_network() -> None:
    assert choose(["mmproj-f16.gguf", "x.gguf"], repo="lab/x", file=None).entry == "x.gguf"


def test_incomplete_set() -> None:
    names = ["x-00001-of-00003.gguf", "x-00003-of-00003.gguf"]

    with pytest.raises(CheckpointError, match=r"only a part of x-00001-of-00003\.gguf: x-00002-of-00003\.gguf is miss"):
        choose(names, repo="lab/x", file=None)


def test_sentences_stay_short() -> None:
    """Whoever owns the repository chooses the names, and how many there are."""
    many = [f"{n:0300}.gguf" for n in range(5000)]

    with pytest.raises(CheckpointError, match=r"has 5000 \.gguf files.* and 4984 more") as caught:
        choose(many, repo="lab/x", file=None)
    assert len(str(caught.value)) < 5000
    with pytest.raises(CheckpointError) as caught:
        choose(["x-00001-of-99999.gguf"], repo="lab/x", file=None)
    assert len(str(caught.value)) < 5000
