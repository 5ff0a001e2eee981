"""Which loops say how often they run."""

from serve_app.compiling.hlo import parse_module
from serve_app.compiling.trips import known_trips
from tests.serve_app.compiling import texts


def test_a_constant_bound_is_known_and_data_are_not() -> None:
    module = parse_module(texts.LOOPS)
    body = module.computations["unknown_body"]
    assert known_trips(body.instructions["inner"], module=module, computation=body) == 24
    assert known_trips(module.entry.instructions["loop"], module=module, computation=module.entry) is None


def test_a_bound_that_every_turn_hands_on_is_known() -> None:
    text = texts.LOOPS.replace("%n.2 = s32[]{:T(128)S(6)} parameter(1)", "%n.2 = s32[]{:T(128)S(6)} constant(7)")
    module = parse_module(text)
    assert known_trips(module.entry.instructions["loop"], module=module, computation=module.entry) == 7


def test_what_xla_noted_counts() -> None:
    noted = 'backend_config={"known_trip_count":{"n":"9"}}, metadata={op_name="jit(f)/while"'
    module = parse_module(texts.LOOPS.replace('metadata={op_name="jit(f)/while"', noted))
    assert known_trips(module.entry.instructions["loop"], module=module, computation=module.entry) == 9
