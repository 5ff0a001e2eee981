"""What a person reads."""

from io import StringIO

from rich.console import Console

from serve_app.compiling.checks import Check
from serve_app.compiling.estimate import Speed
from serve_app.compiling.memory import Resident
from serve_app.compiling.report import Program
from serve_app.compiling.tables import tables, verdict
from tests.serve_app.compiling.making import GIB, fit, report


def printed(*, width: int = 120, **values: object) -> str:
    paper = StringIO()
    Console(width=width, file=paper).print(tables(report(**values)))
    return paper.getvalue()


def test_a_model_that_fits() -> None:
    assert verdict(report()) == "llama-3.1-8b in int8, 8 slots x 2048 tokens: fits v6e-1"


def test_a_model_that_does_not_fit_says_what_would() -> None:
    small = fit(resident=Resident(weights=28 * GIB, pages=4 * GIB, states=0), context=1024, slots=4)
    assert verdict(report(fit=small, would_hold=("v6e-4", "v5p-1"))) == (
        "llama-3.1-8b in int8, 8 slots x 2048 tokens: does not fit v6e-1: 32.11 GiB are needed of 30.00 GiB on each "
        "device; what would fit: on this slice 8 slots x 1024 tokens; on this slice 4 slots x 2048 tokens; as it is "
        "v6e-4, v5p-1"
    )


def test_nothing_would_hold_it() -> None:
    large = fit(resident=Resident(weights=10**13, pages=0, states=0), context=0, slots=0)
    assert verdict(report(fit=large, would_hold=())).endswith("no slice known here would hold it")


def test_everything_is_there_and_called_an_estimate() -> None:
    text = printed(
        programs=(
            Program(name="layers, 8 rows", refusal=None, seconds=12.0),
            Program(name="draw, 8 rows", refusal="no such op", seconds=0.1),
        ),
        speeds=(Speed(tokens=1, drafts=0, one=100.0, all=700.0), Speed(tokens=3, drafts=7, one=280.0, all=1900.0)),
        checks=(Check(name="temporaries / weights", value=0.5, limit=0.03, blame=("copy.1",)),),
        guessed=("experts.py",),
    )
    assert "draw, 8 rows: no such op" in text
    assert "estimates, every slot at position 1024" in text
    assert "tokens a second: estimates" in text
    assert "1900.0" in text
    assert "copy.1" in text
    assert "loops whose length depends on data count once: experts.py" in text


def test_a_model_that_was_not_compiled_has_its_memory_alone() -> None:
    text = printed(programs=(), estimates=())
    assert "memory of each device" in text
    assert "estimates" not in text


def test_no_figure_is_cut_on_a_narrow_terminal() -> None:
    text = printed(width=80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for heading in ("slots x rows", "HBM/weights", "attention GB", "states GB", "sum/max/other", "bound by"):
        assert heading in text


def test_programs_that_do_not_compile_are_in_the_first_line() -> None:
    programs = (
        Program(name="layers, 8 rows", refusal="no such op", seconds=12.0),
        Program(name="draw, 8 rows", refusal=None, seconds=0.1),
    )
    assert verdict(report(programs=programs)).endswith("2048 tokens: 1 of 2 programs do not compile for v6e-1")


def test_brackets_are_brackets() -> None:
    name, refusal = "x[red]y[bold]:smile:", "aval bf16[8,128] in [/vmem] and [tile]"
    text = printed(model=name, programs=(Program(name="draw", refusal=refusal, seconds=0.1),))
    assert name in text
    assert refusal in " ".join(text.split())
