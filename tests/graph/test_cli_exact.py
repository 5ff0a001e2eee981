"""`outrider exact` from start to end, on a model small enough."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.serve, pytest.mark.slow, pytest.mark.timeout(900)]

COMMAND = [sys.executable, "-m", "serve_app.cli", "exact"]
# As `docs/reference/configuration.md` has it for a service's nodes.
ON_A_NODE = {**os.environ, "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0"}


def test_it_compares_every_configuration_and_says_how_many_tokens(golden_llama: Path) -> None:
    options = ["--prompts", "quick", "--tokens", "16", "--ctx", "512", "--precision", "f32"]
    done = subprocess.run(
        [*COMMAND, str(golden_llama / "llama.f16.gguf"), *options],
        capture_output=True,
        text=True,
        check=False,
        env=ON_A_NODE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = re.fullmatch(r"tokens compared: (\d+), mismatches: 0", done.stdout.splitlines()[-1])
    assert summary is not None
    assert int(summary[1]) > 5000
    rows = [re.split(r"\s*│\s*", line.strip("│ \n")) for line in done.stdout.splitlines() if line.startswith("│")]
    assert {row[0] for row in rows} == {"off", "ngram, declined", "ngram 1", "ngram 3", "ngram 7", "random", "oracle"}
    companies = {row[1] for row in rows}
    assert {"alone", "with 7 others"} < companies
    assert {"preempted", "preempted, cold"} <= companies
    assert len({company for company in companies if company.startswith("rung ")}) > 3
    assert {row[2] for row in rows} == {"greedy", "sampled", "mixed"}
    assert {row[5] for row in rows} == {"0", "-"}


def test_prompts_that_cannot_fit_are_said(golden_llama: Path) -> None:
    options = ["--prompts", "copy", "--tokens", "120", "--ctx", "128", "--precision", "f32"]
    done = subprocess.run(
        [*COMMAND, str(golden_llama / "llama.f16.gguf"), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    reason = "none of the 20 prompts fits a context of 128 with 120 tokens of reply; raise --ctx"
    assert done.stderr.splitlines()[-1] == f"outrider: {reason}"
