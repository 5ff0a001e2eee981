"""What every test finds prepared: the backend, run-time type checks, and the paths of models small and real."""

import os

# Before anything imports jax or ray: both read these once.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jaxtyping import install_import_hook

from serve_app.catalog import SMOLLM2_135M
from serve_app.model_fetch import default_cache_dir
from tests.typechecks import check

# Shapes and dtypes written in annotations are checked on every call, in the rooms that hold arrays.
# OUTRIDER_TEST_TYPECHECK=0 turns that off, to time something or to see an error of jax itself.
if os.environ.get("OUTRIDER_TEST_TYPECHECK", "1") != "0":
    install_import_hook(["deployments.lm", "deployments.verifier"], f"{check.__module__}.{check.__name__}")

_GOLDEN = Path(__file__).parent / "data" / "golden"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as `model` whatever asks for the real weights, so that `-m "not model"` needs no list."""
    for item in items:
        if isinstance(item, pytest.Function) and "smollm2_path" in item.fixturenames:
            item.add_marker(pytest.mark.model)


@pytest.fixture(scope="module", autouse=True)
def no_cache_of_programs() -> Iterator[None]:
    """A model that is loaded in this process turns JAX's cache of programs on, for the whole process: not for the
    modules that come after, some of which compile for absent devices, whose programs cannot be read again.
    """
    _forget_cache()
    yield
    _forget_cache()


def _forget_cache() -> None:
    if jax.config.jax_compilation_cache_dir is not None:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, from `OUTRIDER_TEST_MODEL` or from where `make model` puts it."""
    named = os.environ.get("OUTRIDER_TEST_MODEL")
    path = Path(named) if named else default_cache_dir() / SMOLLM2_135M.member
    if path.is_file():
        return path
    if named or os.environ.get("CI"):
        pytest.fail(f"{path} is not there; run `make model`, or set OUTRIDER_TEST_MODEL to the file")
    pytest.skip(f"{path} is not there; `make model` fetches it")


@pytest.fixture(scope="session")
def goldens() -> Path:
    """Folders, one per family: a random network in both formats, and what two peers computed (`ref.npz`)."""
    return _GOLDEN


@pytest.fixture(scope="session")
def golden_llama() -> Path:
    """A folder: a random llama of 394,304 parameters (`llama.f16.gguf`) and what two peers computed (`ref.npz`)."""
    return _GOLDEN / "llama"


@pytest.fixture(scope="session")
def golden_llama_rope3() -> Path:
    """The same with Llama 3's rotary scaling: `llama_rope3.f32.gguf`, `ref.npz`."""
    return _GOLDEN / "llama_rope3"


@pytest.fixture(scope="session")
def golden_llama_k256() -> Path:
    """Quantised files with dimensions of 256: `llama_k256.{Q4_1,Q8_0,Q6_K}.{gguf,ref.npz,deq.npz}`."""
    return _GOLDEN / "llama_k256"
