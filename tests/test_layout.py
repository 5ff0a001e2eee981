"""The house style that a linter does not know. Each rule names the file that breaks it, and why the rule is there."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest

from deployments.messages.metrics import MetricKind, MetricSpec
from serve_app import config, drafter_config, sections

ROOT = Path(__file__).parents[1]
SOURCE = ("serve_app", "deployments")
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
MAX_WIRING_LINES = 120
FORBIDDEN_NAMES = frozenset({"utils", "common", "helpers", "manager", "misc", "v2", "shared"})
# Annotations are looked at while the program runs: by jaxtyping here, by Ray where a builder's argument is parsed.
EVALUATED_ANNOTATIONS = ("deployments/lm", "deployments/drafter", "deployments/verifier", "serve_app")
COMPUTING = ("deployments/lm", "deployments/verifier")
ARRAY = re.compile(r"^(Array|jax\.Array|np\.ndarray|(Float|Float32|BFloat16|Int|Int8|Int32|UInt32|Bool|Shaped|Num)\[)")
# Written in pieces, so that this file does not break its own rule.
FORBIDDEN_WORDS = re.compile(
    "|".join(("/wor" + "k/", "/far" + "m/", "/ro" + "ot/", "pyp" + r"i\.org", "python" + r"hosted", "npm" + r"js\.org"))
    + "|debian"
    + r"\.org"
)

type Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tracked() -> tuple[Path, ...]:
    """The files git has, or would have after `git add`."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return tuple(path for name in sorted(set(names)) if name and (path := ROOT / name).is_file())


def listed(breaches: Collection[str]) -> str:
    return "\n" + "\n".join(sorted(breaches))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def python_files(*folders: str) -> list[Path]:
    chosen = [path for path in tracked() if path.suffix == ".py"]
    return [path for path in chosen if not folders or name_of(path).startswith(tuple(f"{f}/" for f in folders))]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions_of(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def is_protocol(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)


def public_nodes(path: Path) -> Iterator[tuple[Function | ast.ClassDef, ast.ClassDef | None]]:
    """Public functions and classes of a module, and public methods with their class; nothing nested in a function."""
    for node in parsed(path).body:
        if not isinstance(node, Function.__value__ | ast.ClassDef) or node.name.startswith("_"):
            continue
        yield node, None
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, Function.__value__) and not member.name.startswith("_"):
                    yield member, node


def test_files_are_short() -> None:
    long = {name_of(path): n for path in python_files() if (n := len(path.read_text().splitlines())) > MAX_FILE_LINES}
    assert not long, listed(long)


def test_functions_are_short() -> None:
    long = {
        f"{name_of(path)}:{function.name}": lines
        for path in python_files()
        for function in functions_of(path)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert not long, listed(long)


def test_wiring_is_only_wiring() -> None:
    found = [path for path in python_files("deployments") if path.name == "deployment.py"]
    assert found
    assert not {name_of(path) for path in found if len(path.read_text().splitlines()) > MAX_WIRING_LINES}


def test_modules_are_named_for_what_they_hold() -> None:
    named = {
        name_of(path) for path in python_files() if FORBIDDEN_NAMES & set(path.relative_to(ROOT).with_suffix("").parts)
    }
    assert not named, listed(named)


def test_annotations_are_evaluated() -> None:
    postponed = {
        name_of(path)
        for path in python_files(*EVALUATED_ANNOTATIONS)
        for node in parsed(path).body
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    }
    assert not postponed, listed(postponed)


def test_every_public_name_says_what_it_does() -> None:
    silent = {
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in python_files(*SOURCE)
        for node, owner in public_nodes(path)
        if ast.get_docstring(node) is None and not may_be_silent(node, owner=owner)
    }
    assert not silent, listed(silent)


def may_be_silent(node: Function | ast.ClassDef, *, owner: ast.ClassDef | None) -> bool:
    """Data without behaviour, bodies of one statement, and what a Protocol (or a base class of ours) describes."""
    if isinstance(node, ast.ClassDef):
        return not any(isinstance(member, Function.__value__) for member in node.body)
    return owner is not None and (len(node.body) == 1 or node.name in described_elsewhere())


@cache
def described_elsewhere() -> frozenset[str]:
    classes = [node for path in python_files(*SOURCE) for node in parsed(path).body if isinstance(node, ast.ClassDef)]
    members = [member for node in classes if is_protocol(node) for member in node.body]
    return frozenset(member.name for member in members if isinstance(member, Function.__value__))


def test_modules_say_what_they_do() -> None:
    silent = {
        name_of(path)
        for path in python_files(*SOURCE)
        if ast.get_docstring(parsed(path)) is None and (path.name != "__init__.py" or path.read_text().strip())
    }
    assert not silent, listed(silent)


def test_public_functions_take_one_positional_argument() -> None:
    """The rest is named at the call. Exempt: arrays and pytrees of them, and a class asked for (`get(key, str)`)."""
    crowded = {
        f"{name_of(path)}:{node.lineno} {node.name}({', '.join(extra)})"
        for path in python_files(*SOURCE)
        for node, owner in public_nodes(path)
        if not isinstance(node, ast.ClassDef) and len(extra := positional(node, owner=owner)) > 1
    }
    assert not crowded, listed(crowded)


def positional(function: Function, *, owner: ast.ClassDef | None) -> list[str]:
    """The positional parameters that count."""
    static = any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in function.decorator_list)
    parameters = [*function.args.posonlyargs, *function.args.args]
    if owner is not None and not static:
        parameters = parameters[1:]
    written = {p.arg: ast.unparse(p.annotation) if p.annotation else "" for p in parameters}
    return [
        name
        for name, hint in written.items()
        if not ARRAY.match(hint) and not hint.startswith("type[") and hint not in pytrees()
    ]


@cache
def pytrees() -> frozenset[str]:
    """The names, in the rooms that compute, of network modules, tuples of arrays, and aliases of either."""
    names = set()
    for node in (node for path in python_files(*COMPUTING) for node in parsed(path).body):
        if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & {"NamedTuple", "nnx.Module"}:
            names.add(node.name)
        elif isinstance(node, ast.TypeAlias) and ARRAY.search(ast.unparse(node.value).removeprefix("tuple[")):
            names.add(node.name.id)
    return frozenset(names)


def test_importing_deployments_imports_nothing() -> None:
    """So that a process that needs only messages loads no Ray and no accelerator stack."""
    program = "import sys; before = set(sys.modules); import deployments; print(*sorted(set(sys.modules) - before))"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {program}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["deployments"]


def test_no_machine_is_named() -> None:
    """Paths of one machine and addresses of registries make the next machine fail."""
    naming = {}
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if hits := FORBIDDEN_WORDS.findall(text):
            naming[name_of(path)] = hits
    assert not naming, listed(naming)


REQUIREMENTS = {"requirements.txt", "requirements-dev.txt", "requirements-tpu.txt"}


@pytest.mark.parametrize("name", sorted(REQUIREMENTS))
def test_requirements_are_locked(name: str) -> None:
    """Every package has one version and its hashes; none says where to get it."""
    text = (ROOT / name).read_text()
    packages = re.split(r"\n(?=[a-z0-9])", re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE))
    assert all(re.match(r"[a-z0-9.-]+==\S+ ", package) and "--hash=sha256:" in package for package in packages)
    assert "://" not in text
    assert "--index" not in text


def test_development_and_tpu_add_to_the_locked_runtime() -> None:
    pinned = {
        name: set(re.findall(r"^\S+==\S+", (ROOT / name).read_text(), flags=re.MULTILINE)) for name in REQUIREMENTS
    }
    assert pinned["requirements.txt"] < pinned["requirements-dev.txt"]
    assert pinned["requirements.txt"] < pinned["requirements-tpu.txt"]


LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def test_links_between_documents_lead_somewhere() -> None:
    documents = [path for path in tracked() if path.suffix == ".md" and not name_of(path).startswith("tests/")]
    broken = {
        f"{name_of(path)} -> {target}"
        for path in documents
        for target in LINK.findall(path.read_text())
        if not (path.parent / target).exists()
    }
    assert not broken, listed(broken)


def test_every_metric_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    missing = {f"outrider_{name}" for name in declared_metrics() if f"`outrider_{name}`" not in page}
    assert not missing, listed(missing)


def declared_metrics() -> set[str]:
    modules = [
        importlib.import_module(name_of(path).removesuffix(".py").replace("/", "."))
        for path in python_files("deployments")
        if path.name.endswith("counters.py")
    ]
    tables = [value for module in modules for value in vars(module).values() if isinstance(value, tuple)]
    specs = [spec for table in tables for spec in table if isinstance(spec, MetricSpec)]
    assert specs
    return {spec.name + ("_total" if spec.kind is MetricKind.COUNTER else "") for spec in specs}


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    found = [
        value
        for value in (*vars(config).values(), *vars(drafter_config).values())
        if isinstance(value, type) and issubclass(value, sections.Section)
    ]
    names = {name for section in found for name in section.model_fields}
    assert names
    missing = {name for name in names if f"`{name}`" not in page}
    assert not missing, listed(missing)
