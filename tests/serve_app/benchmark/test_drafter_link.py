"""A drafter in a process of its own: it answers, and it never outlives who started it."""

import pickle
import subprocess
import sys

import pytest

from deployments.lm.drafting.ngram import NgramSettings
from deployments.messages.errors import Unavailable
from deployments.messages.generation import GenerateRequest
from deployments.verifier.drafts import DraftWanted
from deployments.verifier.links import LinkSettings
from deployments.verifier.remote import RemoteDrafts
from serve_app.benchmark.drafter_link import drafter_process, linked
from serve_app.benchmark.host import Recorder


def test_it_drafts_with_the_settings_it_was_given() -> None:
    link = LinkSettings(verifier="test", vocab_size=10, k_max=2, deadline_s=10.0)
    strategy = NgramSettings(max_n=1, min_n=1, max_k=2)
    with drafter_process(strategy) as endpoint, linked(endpoint, settings=link, metrics=Recorder()) as links:
        request = GenerateRequest(request_id="a", prompt_ids=(1, 2, 3, 1), max_tokens=4)
        drafts = RemoteDrafts(links).exchange([DraftWanted(request=request, sequence=[1, 2, 3, 1], k=2)])
    assert (drafts.kind, drafts.tokens) == ("ngram", {"a": (2, 3)})


def test_it_ends_with_whoever_started_it() -> None:
    command = [sys.executable, "-m", "serve_app.benchmark.drafter_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(pickle.dumps(NgramSettings()))
        process.stdin.flush()
        assert b"port" in process.stdout.readline()
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def test_one_that_does_not_start_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Unavailable, match="ended before it listened"), drafter_process(None):  # type: ignore[arg-type] # what cannot be built
        pass
    assert "Traceback" in capfd.readouterr().err
