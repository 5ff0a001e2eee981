"""JSON that is wrong in any way is a `ValueError`, and costs little."""

import pytest

from deployments.lm.checkpoint.strict_json import parse_object, unique
from tests.lm.checkpoint.making import peak

WRONG = {
    "nothing": (b"", "Expecting value"),
    "no object": (b"[1]", "its JSON is list, expected an object"),
    "cut": (b'{"a": [1, ', "Expecting value"),
    "more after it": (b"{} {}", "Extra data"),
    "not UTF-8": (b'{"a": "\xff"}', "can't decode"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "can't decode"),
    "a mark of byte order": (b"\xef\xbb\xbf{}", "BOM"),
    "deep lists": (b'{"a":' + b"[" * 200_000, "nested too deep"),
    "deep objects": (b'{"a":' * 200_000, "nested too deep"),
    "many lists": (b'{"a":[' + b"[]," * 1_000_001, "more than 1000000 lists and objects"),
    "many digits": (b'{"a":' + b"9" * 5000 + b"}", "Exceeds the limit"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str) -> None:
    data, reason = WRONG[name]
    with peak() as allocated, pytest.raises(ValueError, match=reason):
        parse_object(data)

    assert allocated.bytes < 2 * len(data) + 2**20


def test_doubled_names_are_refused_where_asked_for() -> None:
    assert parse_object(b'{"a": 1, "a": 2}') == {"a": 2}
    for data in (b'{"a": 1, "b": 0, "a": 1}', b'{"b": {"a": 1, "a": 1}}', b'{"a": 1, "\\u0061": 1}'):
        with pytest.raises(ValueError, match="its JSON has 'a' twice"):
            parse_object(data, from_pairs=unique)


def test_an_object_is_read() -> None:
    assert parse_object(b' {"a": [1, 2.5, null], "\xc3\xa9": {"c": "d"}} ', from_pairs=unique) == {
        "a": [1, 2.5, None],
        "é": {"c": "d"},
    }
