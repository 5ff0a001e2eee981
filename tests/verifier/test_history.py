"""The history of one request: the same whenever it is asked for, and no larger than what was planned for."""

import numpy as np
import pytest

from deployments.lm.sampling.blocks import NO_TOKEN
from deployments.lm.sampling.shaping import BLOCK_FIELDS, COUNT_SHIFT, ENTRIES, IN_PROMPT, IS_END
from deployments.messages.generation import MOST_BIASES, GenerateRequest, SamplingSettings
from deployments.verifier.history import MOST_ENDS, History, is_shaped, most_blocks

ALL = SamplingSettings(repetition_penalty=1.3, presence_penalty=0.7, logit_bias=((3, -100.0), (5, 7.5)))
REQUEST = GenerateRequest(request_id="r", prompt_ids=(1, 2), max_tokens=999, sampling=ALL, min_tokens=2, end_ids=(4, 5))


def test_a_history_that_grows_is_the_one_built_at_once() -> None:
    text = [1, 2, *np.random.default_rng(2).integers(0, 700, 600).tolist()]
    growing = History()
    for length in (2, 3, 7, 8, 8, 300, 602):
        drafts = tuple(text[length : length + 3])
        found = growing.blocks(REQUEST, tokens=text[:length], drafts=drafts)
        np.testing.assert_array_equal(found, History().blocks(REQUEST, tokens=text[:length], drafts=drafts))


def test_each_token_has_one_entry_that_says_all_of_it() -> None:
    (block,) = History().blocks(REQUEST, tokens=(1, 2, 5, 9, 5), drafts=(9, 6, 6))
    ids, marks, biases = block[2:].reshape(3, ENTRIES)
    entries = {
        int(token): (int(mark), float(bias))
        for token, mark, bias in zip(ids, marks, biases.view(np.float32), strict=True)
        if token != NO_TOKEN
    }

    assert entries == {
        1: (IN_PROMPT, 0.0),
        2: (IN_PROMPT, 0.0),
        3: (0, -100.0),
        4: (IS_END, 0.0),
        5: (IS_END | 2 << COUNT_SHIFT, 7.5),
        6: (0, 0.0),
        9: (1 << COUNT_SHIFT, 0.0),
    }
    assert np.sum(ids != NO_TOKEN) == len(entries)


def test_no_more_is_kept_than_is_asked_about() -> None:
    """A bias alone needs no history, penalties of the reply no prompt; and ends may be none."""
    only_bias = GenerateRequest(
        request_id="r", prompt_ids=(1, 2), max_tokens=9, sampling=SamplingSettings(logit_bias=((7, 1.0),))
    )
    only_reply = GenerateRequest(
        request_id="r", prompt_ids=(1, 2), max_tokens=9, sampling=SamplingSettings(frequency_penalty=1.0)
    )
    no_ends = GenerateRequest(request_id="r", prompt_ids=(1, 2), max_tokens=9, min_tokens=3)

    assert np.sum(History().blocks(only_bias, tokens=(1, 2, 3), drafts=(4,))[:, 2 : 2 + ENTRIES] != NO_TOKEN) == 1
    assert np.sum(History().blocks(only_reply, tokens=(1, 2, 3), drafts=(4,))[:, 2 : 2 + ENTRIES] != NO_TOKEN) == 2
    assert History().blocks(no_ends, tokens=(1, 2, 3), drafts=()).shape == (0, BLOCK_FIELDS)


@pytest.mark.parametrize("context", [64, 2048])
def test_the_longest_history_is_as_long_as_planned(context: int) -> None:
    """As many different tokens as can be: each position another one, and biases and ends that are none of them."""
    prompt = tuple(range(context - 1))
    biases = tuple((10_000 + i, 1.0) for i in range(MOST_BIASES))
    request = GenerateRequest(
        request_id="r",
        prompt_ids=prompt,
        max_tokens=1,
        min_tokens=1,
        end_ids=tuple(range(20_000, 20_000 + MOST_ENDS)),
        sampling=SamplingSettings(repetition_penalty=2.0, logit_bias=biases),
    )
    blocks = History().blocks(request, tokens=(*prompt, 5000), drafts=tuple(range(6000, 6007)))

    assert len(blocks) == most_blocks(context=context, longest=7)


@pytest.mark.parametrize(
    ("shaped", "request_"),
    [
        (False, GenerateRequest(request_id="r", prompt_ids=(1,), max_tokens=1, logprobs=5, ignore_eos=True)),
        (True, GenerateRequest(request_id="r", prompt_ids=(1,), max_tokens=1, min_tokens=1)),
        (True, REQUEST),
    ],
)
def test_who_needs_one(shaped: bool, request_: GenerateRequest) -> None:
    assert is_shaped(request_) == shaped
