"""The figures that have limits."""

from deployments.verifier.window import Rung
from serve_app.compiling.checks import Check, checks_of
from serve_app.compiling.estimate import Window
from serve_app.compiling.hlo import parse_module
from serve_app.compiling.memory import Resident
from serve_app.compiling.traffic import Movement
from tests.serve_app.compiling import texts
from tests.serve_app.compiling.making import window, work

RESIDENT = Resident(weights=8 * 10**9, pages=10**9, states=0)


def found(*windows: Window) -> dict[str, Check]:
    by_rung = {one.rung: one for one in windows}
    return {one.name: one for one in checks_of(by_rung, bodies={}, modules={}, resident=RESIDENT, layers=4)}


def test_traffic_beyond_the_weights_is_blamed_on_instructions() -> None:
    copy = Movement(name="copy.7", opcode="copy", origin="", sources=(), read=10**9, written=10**9)
    own = found(window(8, body=work(moved=10 * 10**9, excess=(copy,))))
    check = own["HBM outside attention / weights, 8 rows"]
    assert not check.holds
    assert check.blame == ("copy.7 (put in by the compiler): 1000000000 bytes read, 1000000000 written",)
    assert found(window(8, body=work()))["HBM outside attention / weights, 8 rows"].holds


def test_wide_windows_are_held_against_narrow_ones() -> None:
    narrow, wide = window(8, body=work()), window(64, body=work(moved=9 * 10**9))
    check = found(narrow, wide)["time of 64 rows / time of 8 rows"]
    assert check.value == 9 / 8
    assert not check.holds
    assert "time of 64 rows / time of 8 rows" not in found(narrow)


def test_exchanges_are_counted_by_layer_with_the_embeddings_own() -> None:
    assert "sums over devices / layer" not in found(window(8, body=work()))
    own = found(window(8, body=work(wire=1e6, sums=9, maxima=8)))
    assert own["sums over devices / layer"].value == 9 / 4
    assert own["sums over devices / layer"].holds
    assert own["maxima over devices / layer"].holds
    assert not found(window(8, body=work(wire=1e6, sums=10)))["sums over devices / layer"].holds


def test_arrays_of_the_cache_that_are_not_aliased_are_named() -> None:
    module = parse_module(texts.SCATTER.replace("{1}: (3, {}, may-alias)", "{1}: (2, {}, may-alias)"))
    rung = Rung(rows=8, tiles=8)
    from deployments.verifier.ahead import CompiledProgram, ProgramMemory

    memory = ProgramMemory(arguments=1, outputs=1, temporaries=10**9, aliased=0, code=1)
    program = CompiledProgram(memory=memory, flops=0.0, hlo_text="", seconds=1.0)
    own = checks_of({}, bodies={rung: program}, modules={rung: module}, resident=RESIDENT, layers=4)
    by_name = {one.name: one for one in own}
    assert by_name["arrays of the cache that are not aliased"].blame == ("cache[1]",)
    assert by_name["temporaries / weights"].value == 1 / 8
    assert not by_name["temporaries / weights"].holds
