"""Input meant to hurt: a 4xx with one clear sentence, and the service goes on."""

from typing import Any

import orjson
import pytest

from deployments.ingress.auth import key_digest
from deployments.ingress.settings import IngressSettings
from tests.ingress.conftest import Serve
from tests.ingress.fakes import MODEL

_HEAD = b'{"model": "' + MODEL.encode() + b'", "messages": [{"role": "user", "content": '
_GOOD = _HEAD + b'"hi"}]'


def _with(field: bytes, /) -> bytes:
    return _GOOD + b", " + field + b"}"


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "not json": b"hello",
    "half a body": _GOOD,
    "a list": b"[]",
    "a number": b"7",
    "null": b"null",
    "empty messages": b'{"model": "' + MODEL.encode() + b'", "messages": []}',
    "a prompt of 1 MB": _HEAD + b'"' + b"x" * 1_000_000 + b'"}]}',
    "invalid utf-8": _HEAD + b'"\xff\xfe"}]}',
    "a surrogate in utf-8": _HEAD + b'"\xed\xa0\x80"}]}',
    "a lone high surrogate": _HEAD + b'"\\ud800"}]}',
    "a lone low surrogate": _HEAD + b'"\\udc00"}]}',
    "a surrogate in a stop string": _with(b'"stop": "\\udfff"'),
    "nan": _with(b'"temperature": NaN'),
    "infinity": _with(b'"top_p": Infinity'),
    "a float beyond floats": _with(b'"temperature": 1e999'),
    "temperature too high": _with(b'"temperature": 1e300'),
    "negative temperature": _with(b'"temperature": -1'),
    "negative top_p": _with(b'"top_p": -0.5'),
    "huge top_k": _with(b'"top_k": 99999999999'),
    "an unknown role": b'{"model": "' + MODEL.encode() + b'", "messages": [{"role": "root", "content": "x"}]}',
    "deep json": _HEAD + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
    "json of legal depth": _HEAD + b"[" * 900 + b"]" * 900 + b"}]}",
    "deep json in an unknown field": _with(b'"x": ' + b'{"a":' * 900 + b"1" + b"}" * 900),
    "a seed of 65 bits": _with(b'"seed": 18446744073709551616'),
    "a seed below 64 bits": _with(b'"seed": -9223372036854775809'),
    "a fractional seed": _with(b'"seed": 0.5'),
    "10,000 stop strings": _with(b'"stop": ' + orjson.dumps([str(number) for number in range(10_000)])),
    "a stop string of 1 MB": _with(b'"stop": "' + b"a" * 1_000_000 + b'"'),
    "50,000 bad messages": b'{"model": "m", "messages": [' + b",".join([b"{}"] * 50_000) + b"]}",
    "a name of 1 MB": _with(b'"' + b"n" * 1_000_000 + b'": 1'),
    "max_tokens beyond 64 bits": _with(b'"max_tokens": 99999999999999999999'),
    "max_tokens of 2**62": _with(b'"max_tokens": 4611686018427387904'),
    "n of a million": _with(b'"n": 1000000'),
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_input_is_a_4xx_and_the_service_goes_on(serve: Serve, body: bytes) -> None:
    async with serve() as running:
        response = await running.http.post("/v1/chat/completions", content=body)
        assert running.verifier.requests == []
        assert (await running.post_chat()).status_code == 200
        await running.idle()
    assert response.status_code == 400
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert 10 < len(error["message"]) < 300


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63 - 1])
async def test_negative_and_large_seeds_are_served(serve: Serve, seed: int) -> None:
    async with serve() as running:
        assert (await running.post_chat(seed=seed)).status_code == 200
        assert 0 <= running.verifier.requests[0].sampling.seed < 2**32


@pytest.mark.parametrize("length", [2_000, 9_000])
async def test_a_body_over_the_limit_is_413(serve: Serve, length: int) -> None:
    async with serve(settings=IngressSettings(max_body_bytes=1_000)) as running:
        response = await running.http.post("/v1/chat/completions", content=b"x" * length)
        assert (await running.post_chat()).status_code == 200
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert "1000 bytes" in response.json()["error"]["message"]


async def test_a_chunked_body_over_the_default_limit_is_413(serve: Serve) -> None:
    async def parts() -> Any:
        for _ in range(5):
            yield b"x" * 1_000_000

    async with serve() as running:
        response = await running.http.post("/v1/chat/completions", content=parts())
    assert response.status_code == 413


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "nonsense"])
async def test_the_content_type_does_not_matter(serve: Serve, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    async with serve() as running:
        response = await running.http.post("/v1/chat/completions", content=_GOOD + b"}", headers=headers)
    assert response.status_code == 200


async def test_a_key_of_odd_bytes_is_refused(serve: Serve) -> None:
    async with serve(settings=IngressSettings(api_key_digests=(key_digest("one"),))) as running:
        headers = {b"authorization": b"Bearer \xff\xfe\x80"}
        response = await running.http.post("/v1/chat/completions", content=_GOOD + b"}", headers=headers)
    assert response.status_code == 401
