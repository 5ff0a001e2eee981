"""The document's table from the command's JSON."""

from pathlib import Path

import pytest

from deployments.messages.errors import ConfigError
from serve_app.compiling.checks import Check
from serve_app.compiling.estimate import Speed
from serve_app.compiling.reference import BEGIN, END, read_report, replaced, table_of
from tests.serve_app.compiling.making import report


def test_a_row_from_what_the_command_prints(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_bytes(
        report(
            checks=(Check(name="temporaries / weights", value=0.001, limit=0.03),),
            speeds=(Speed(tokens=1, drafts=0, one=100.4, all=700.0), Speed(tokens=3, drafts=7, one=280.0, all=1900.0)),
        ).to_json()
    )
    row = table_of([read_report(file)]).splitlines()[-1]
    assert row == (
        "| llama-3.1-8b | v6e-1 | 1 of 1 | 10.11 / 30.00 | 8 x 20480 | 0.10 % | 1.000 | 5.00 | 1.10 | HBM |  "
        "| 100, 700 | 280, 1900 |"
    )


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")
    with pytest.raises(ConfigError, match="is not what 'outrider compile --json' prints"):
        read_report(file)


def test_the_table_is_replaced_and_the_rest_kept() -> None:
    before = f"# Chips\n\n{BEGIN}\n\nold\n\n{END}\n\nafter\n"
    assert replaced(before, table="new") == f"# Chips\n\n{BEGIN}\n\nnew\n\n{END}\n\nafter\n"
    with pytest.raises(ConfigError, match="has no lines"):
        replaced("# Chips\n", table="new")
