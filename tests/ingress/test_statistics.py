"""The numbers reconcile with each other, in both dialects."""

from deployments.ingress.statistics import reply_metrics, timings
from deployments.messages.generation import GenerationStatistics
from tests.ingress.fakes import STATISTICS


def test_timings_speak_llama_cpp() -> None:
    assert timings(STATISTICS) == {
        "cache_n": 1,
        "prompt_n": 3,
        "prompt_ms": 6.0,
        "prompt_per_token_ms": 2.0,
        "prompt_per_second": 500.0,
        "predicted_n": 5,
        "predicted_ms": 10.0,
        "predicted_per_token_ms": 2.0,
        "predicted_per_second": 500.0,
        "draft_n": 13,
        "draft_n_accepted": 7,
        "draft_rounds": 5,
        "draft_kind": "ngram",
    }


def test_draft_keys_are_absent_when_no_drafter_ran() -> None:
    plain = timings(GenerationStatistics(prompt_n=0, predicted_n=1))
    assert not [key for key in plain if key.startswith("draft")]
    assert plain["prompt_per_token_ms"] == 0.0


def test_metrics_speak_vllm() -> None:
    metrics = reply_metrics(STATISTICS, max_draft=4)["speculative_decoding"]
    assert metrics == {
        "mean_acceptance_length": 1.0 + 7 / 5,
        "draft_acceptance_rate": 7 / 13,
        "acceptance_histogram": [2, 1, 0, 2, 0],
        "acceptance_histogram_by_draft_length": {"2": [1, 1, 0, 0], "3": [1, 0, 0, 2]},
        "num_spec_steps": 5,
        "num_accepted_draft_tokens": 7,
        "num_draft_tokens": 13,
        "num_spec_tokens": 4,
        "declined": {"no_match": 2},
    }
    histogram = metrics["acceptance_histogram"]
    assert sum(histogram) == metrics["num_spec_steps"]
    assert sum(kept * windows for kept, windows in enumerate(histogram)) == metrics["num_accepted_draft_tokens"]


def test_a_reply_whose_drafts_were_all_declined_says_why() -> None:
    declined = GenerationStatistics(rounds=((4,),), declined={"load": 4})
    metrics = reply_metrics(declined, max_draft=3)["speculative_decoding"]
    assert (metrics["num_spec_steps"], metrics["mean_acceptance_length"]) == (0, None)
    assert metrics["acceptance_histogram"] == [0, 0, 0, 0]
    assert metrics["declined"] == {"load": 4}


def test_without_speculation_there_is_nothing_to_say() -> None:
    assert reply_metrics(GenerationStatistics(rounds=((4,),)), max_draft=0) == {"speculative_decoding": None}
