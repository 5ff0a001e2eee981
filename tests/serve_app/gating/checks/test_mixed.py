"""Right and wrong drafts in turn."""

from deployments.messages.generation import GenerateRequest
from deployments.verifier.backoff import MISSES, BackOff
from deployments.verifier.drafts import DraftWanted
from serve_app.gating.checks.mixed import MixedDrafts
from tests.serve_app.gating.checks.small import KnowingDrafts

REPLY = tuple(range(10, 60))


def test_most_rounds_have_one_wrong_draft_and_none_makes_the_verifier_back_off() -> None:
    source = MixedDrafts(KnowingDrafts({"q": REPLY}), vocabulary=64, seed=3)
    request = GenerateRequest(request_id="q 1", prompt_ids=(1, 2), max_tokens=len(REPLY))
    source.begin(request)
    state, wrong = BackOff(), 0
    for said in range(48):
        wanted = [DraftWanted(request=request, sequence=(1, 2, *REPLY[:said]), k=1 + said % 3)]
        chain = source.exchange(wanted).tokens["q 1"]
        right = REPLY[said : said + len(chain)]
        differing = [place for place, token in enumerate(chain) if token != right[place]]
        assert len(differing) <= 1
        assert all(0 <= token < 64 for token in chain)
        wrong += len(differing)
        state = state.after_window(speculated=True, kept=differing[0] if differing else len(chain))
        assert state.may_guess
    assert wrong == 48 - 48 // MISSES
