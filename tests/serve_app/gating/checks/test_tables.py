"""What people read."""

import io

from rich.console import Console

from serve_app.gating.checks.tables import TABLE_WIDTH, bars, follows, tables, verdict_line
from serve_app.gating.evidence import ProfitEvidence
from serve_app.gating.records import Record
from tests.serve_app.gating.making import exactness, point, profit


def printed(*records: Record) -> str:
    out = io.StringIO()
    Console(file=out, width=TABLE_WIDTH).print(tables(records))
    return out.getvalue()


def test_everything_that_was_measured_is_shown() -> None:
    text = printed(exactness(), profit())
    assert "hidden row 3 differs" in text
    assert "8, 16, 32 rows" in text
    for figure in ("4096", "2000", "1.60 (1.44 .. 1.76, 5)", "70% 50% 25%", "20.0 -> 26.5", "0.40"):
        assert figure in text
    assert "exactness: pass" in text
    assert "profit of ngram: pass" in text
    assert max(map(len, text.splitlines())) <= TABLE_WIDTH


def test_an_inexact_program_says_where() -> None:
    assert "fail (inexact)" in printed(exactness(is_exact=False))
    assert verdict_line(exactness(is_exact=False)).startswith("exactness: fail (inexact)")


def test_what_follows_is_said_in_stretches() -> None:
    ratios = {1: 1.6, 2: 1.3, 3: 1.3, 4: 0.9}
    assert follows(profit(ratios=ratios)) == "drafts by active slots: K 7 at 1 to 3"
    assert follows(profit(ratios={1: 0.9})) == "nothing is drafted"


def test_bars_grow_with_the_ratio_and_mark_where_nothing_is_gained() -> None:
    evidence = ProfitEvidence(points=(point(1, 2.0), point(8, 1.0), point(16, 0.5)))
    fast, even, slow = bars(evidence)
    assert [line.count("█") for line in (fast, even, slow)] == [47, 23, 12]
    assert {line.index("│") for line in (fast, even, slow)} == {5 + 23}
    assert fast.startswith("   1 ")
    assert slow.endswith(" 0.50")
    assert not list(bars(ProfitEvidence()))
