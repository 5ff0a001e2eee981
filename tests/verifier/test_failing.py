"""Windows that fail, and what fails around them: nobody who waits is left without an answer."""

from typing import NoReturn

import pytest
from msgspec.structs import replace

from deployments.messages.errors import DeadlinePassed, Unavailable
from deployments.verifier.drafts import NoDrafts
from tests.verifier.recalling import recalling_engine
from tests.verifier.serving import serve
from tests.verifier.test_engine import Guessing, assert_whole, request


def test_a_window_that_fails_ends_its_requests_and_nothing_else() -> None:
    engine, programs = recalling_engine(source := Guessing())
    before = [request(number) for number in range(5)]
    for one in before:
        engine.submit(one)
    engine.step()
    programs.failures = [RuntimeError("lost the device")]
    engine.step()
    with pytest.raises(RuntimeError, match="lost the device"):
        engine.step()

    failed = engine.fail_all(Unavailable("send it again"))

    assert {delivery.request_id for delivery in failed} == {one.request_id for one in before}
    assert all(isinstance(delivery.error, Unavailable) for delivery in failed)
    assert set(source.closed.values()) == {"failed"}
    assert engine.is_idle
    engine.scheduler.check_integrity()
    again = [replace(one, request_id=f"again-{one.request_id}") for one in before]
    for one, reply in zip(again, serve(engine, again).values(), strict=True):
        assert_whole(reply, of=one)


def test_whoever_expires_as_a_window_fails_is_told_so() -> None:
    now = [0.0]
    engine, programs = recalling_engine(NoDrafts(), slots=1, clock=lambda: now[0])
    engine.submit(request(0, tokens=20))
    engine.submit(replace(request(1), deadline_s=1.0))
    engine.step()
    now[0] = 2.0

    def gone(*_: object) -> NoReturn:
        raise RuntimeError("lost the device")

    programs.launch = gone  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="lost the device"):
        engine.step()
    told = {one.request_id: one for one in engine.fail_all(Unavailable("send it again")) if one.error}

    assert isinstance(told["r0"].error, Unavailable)
    assert isinstance(told["r1"].error, DeadlinePassed)


def test_whoever_ends_as_telling_fails_is_told_something() -> None:
    """Two requests end in one window, and the source cannot close the first."""

    class Stubborn(Guessing):
        def close(self, request_id: str, /, *, reason: str) -> None:
            if request_id == "r0":
                raise ValueError("no")
            super().close(request_id, reason=reason)

    engine, _ = recalling_engine(Stubborn(skill=-1.0), draft_k=1)
    for number in range(3):
        engine.submit(request(number, prompt=4, tokens=3 if number < 2 else 30))
    engine.step()
    engine.step()
    engine.step()
    with pytest.raises(ValueError, match="no"):
        engine.step()
    ended = {delivery.request_id: delivery for delivery in engine.fail_all(Unavailable("send it again"))}

    assert ended.keys() == {"r0", "r1", "r2"}
    assert all(delivery.error is not None for delivery in ended.values())
    assert engine.is_idle
