"""The picture."""

import sys
from pathlib import Path

import pytest

from deployments.messages.errors import ConfigError
from serve_app.gating.checks.plot import check_plot, draw_plot
from tests.serve_app.gating.making import profit


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "gain.png"
    check_plot(path)
    draw_plot(path, profits=[profit(), profit(ratios={1: 1.2})])
    assert path.read_bytes().startswith(b"\x89PNG")
    draw_plot(path, profits=[])
    assert path.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_known_beforehand(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigError, match=r"\.png"):
        check_plot(tmp_path / "gain.pdf")
    with pytest.raises(ConfigError, match="give --plot another path"):
        check_plot(tmp_path / "none" / "gain.png")


def test_without_matplotlib_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="pip install"):
        check_plot(tmp_path / "gain.png")
    assert not (tmp_path / "gain.png").exists()
