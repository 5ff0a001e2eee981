"""Running applications for tests. They share one, as far as they can; what needs the real weights comes last."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from serve_app.local import Service
from tests.graph.stage import Stage, app_config, stage


@dataclass(frozen=True, kw_only=True)
class _Held:
    stage: Stage
    stack: ExitStack


_HELD = pytest.StashKey[_Held]()
_ORDER = ("golden_service", "oracle_service", "smollm2_path")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every other application costs a start, so tests of one stay together."""
    here = Path(__file__).parent
    places = [place for place, item in enumerate(items) if here in item.path.parents]
    ordered = sorted((items[place] for place in places), key=_order)
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


def _order(item: pytest.Item) -> int:
    names = set(item.fixturenames) if isinstance(item, pytest.Function) else set()
    return next((rank for rank, name in enumerate(_ORDER) if name in names), len(_ORDER))


@pytest.fixture(scope="module")
def the_stage(pytestconfig: pytest.Config) -> Stage:
    """The one cluster of all these tests; `pytest_runtest_teardown` ends it with the last of them."""
    if _HELD not in pytestconfig.stash:
        stack = ExitStack()
        pytestconfig.stash[_HELD] = _Held(stage=stack.enter_context(stage()), stack=stack)
    return pytestconfig.stash[_HELD].stage


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Other rooms' tests need not run beside Ray's processes, nor its threads in this one."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        _end(item.config)


def pytest_sessionfinish(session: pytest.Session) -> None:
    _end(session.config)


def _end(config: pytest.Config) -> None:
    if _HELD in config.stash:
        stack = config.stash[_HELD].stack
        del config.stash[_HELD]
        stack.close()


@pytest.fixture
def golden_service(the_stage: Stage, golden_llama: Path) -> Service:
    """The random golden llama with n-gram lookup, the default drafter."""
    return the_stage.service(
        app_config(golden_llama / "llama.f16.gguf", drafter={"kind": "ngram"}, precision="f32", context=512)
    )


@pytest.fixture(scope="session")
def oracle_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the oracle drafter knows; tests write it."""
    path = tmp_path_factory.mktemp("oracle") / "sequences.json"
    path.write_text("[]")
    return path


@pytest.fixture
def oracle_service(the_stage: Stage, golden_llama: Path, oracle_file: Path) -> Service:
    """The same with a drafter that is always right: speculation never rests, so that its end and its return show.

    The deadline is long, so that a busy machine does not look like a drafter that is late.
    """
    drafter = {"kind": "oracle", "path": str(oracle_file)}
    return the_stage.service(
        app_config(golden_llama / "llama.f16.gguf", drafter=drafter, precision="f32", context=512, draft_deadline_ms=50)
    )
