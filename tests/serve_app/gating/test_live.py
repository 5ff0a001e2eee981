"""Gates change while replies are on their way: from a store, by the rule, to an engine. No reply does."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from deployments.messages.generation import GenerateRequest, SamplingSettings, SpeculationSettings
from deployments.messages.ports import GateWatch
from deployments.verifier.drafts import Drafts, DraftWanted, NoDrafts
from deployments.verifier.engine import Engine
from deployments.verifier.loading import LoadedModel
from serve_app.benchmark.host import Recorder
from tests.serve_app.gating.benches import eventually
from tests.serve_app.gating.checks.small import KnowingDrafts
from tests.serve_app.gating.deployed import config, gate, passed, watching
from tests.verifier.serving import Reply, serve

PAYS = {1: 1.6, 4: 1.3}
# It loses from four active slots on.
CROSSOVER = {1: 1.6, 3: 1.3, 4: 0.9}
IN_FORCE_S = 2.0


def request(number: int, *, tokens: int) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"r{number} 0",
        prompt_ids=(7, 8, 9, 10 + number) * 4,
        max_tokens=tokens,
        sampling=SamplingSettings(temperature=0.8 * (number % 2), seed=number),
    )


class Asked(KnowingDrafts):
    """Notes for how many requests the latest round was asked for drafts."""

    asked = 0

    def exchange(self, wanted: Sequence[DraftWanted], /) -> Drafts:
        self.asked = len(wanted)
        return super().exchange(wanted)


class Live:
    """An engine that obeys a watch, with drafts that are always right."""

    def __init__(self, model: LoadedModel, watch: GateWatch, *, asked: list[GenerateRequest]) -> None:
        plain = serve(model.engine(drafts=NoDrafts(), metrics=Recorder()), asked)
        self.plain = {name: reply.tokens for name, reply in plain.items()}
        self.drafts = Asked({name.rsplit(" ", 1)[0]: tuple(tokens) for name, tokens in self.plain.items()})
        self.engine: Engine = model.engine(drafts=self.drafts, metrics=Recorder(), rules=lambda: watch.rule)
        self.replies = {one.request_id: Reply() for one in asked}

    def step(self, windows: int = 1) -> None:
        for _ in range(windows):
            self.drafts.asked = 0
            for delivery in self.engine.step():
                self.replies[delivery.request_id].take(delivery)
            self.engine.scheduler.check_integrity()

    def finish(self) -> None:
        while not self.engine.is_idle:
            self.step()
        assert {name: reply.tokens for name, reply in self.replies.items()} == self.plain


@pytest.mark.parametrize("narrowed", ["everything", "kind", "chip", "model"])
def test_off_and_on_again_count_from_the_next_window_of_a_reply_on_its_way(
    narrowed: str, model: LoadedModel, golden_llama: Path, tmp_path: Path
) -> None:
    path, one = golden_llama / "llama.f16.gguf", request(0, tokens=100)
    deployed = config(path, store=tmp_path / "gates.yaml")
    store = passed(model, deployed=deployed, ratios=PAYS)
    chip = store.load().exactness[0].key.chip.kind
    words = {"everything": (), "kind": ("--kind", "ngram"), "chip": ("--chip", chip), "model": ("--model", str(path))}
    target = (*words[narrowed], "--store", deployed.gates.store)
    with watching(model, deployed=deployed) as watch:
        live = Live(model, watch, asked=[one])
        reply = live.replies[one.request_id]
        live.engine.submit(one)
        live.step(5)
        assert reply.statistics.draft_n > 0
        gate("force", "off", *target, "--why", "a test", "--by", "alice")
        eventually(lambda: watch.rule.reason == "disabled_by_operator", within_s=IN_FORCE_S)
        # The window that was under way had drafts; what is said of it comes with the step after.
        live.step(2)
        drafted, declined = reply.statistics.draft_n, reply.statistics.declined.get("disabled_by_operator", 0)
        live.step(6)
        assert reply.finish is None
        assert reply.statistics.draft_n == drafted
        assert reply.statistics.declined["disabled_by_operator"] == declined + 6
        gate("unforce", *target)
        eventually(lambda: watch.rule.kind == "ngram", within_s=IN_FORCE_S)
        live.finish()
    assert reply.statistics.draft_n > drafted
    assert reply.statistics.prompt_n == len(one.prompt_ids), "it was begun again"


def test_off_on_another_chip_is_no_matter_here(model: LoadedModel, golden_llama: Path, tmp_path: Path) -> None:
    one = request(0, tokens=60)
    deployed = config(golden_llama / "llama.f16.gguf", store=tmp_path / "gates.yaml")
    passed(model, deployed=deployed, ratios=PAYS)
    with watching(model, deployed=deployed) as watch:
        live = Live(model, watch, asked=[one])
        live.engine.submit(one)
        live.step(3)
        gate("force", "off", "--chip", "TPU v6e", "--why", "a test", "--store", deployed.gates.store)
        eventually(lambda: watch.report().store["revision"] == 3, within_s=IN_FORCE_S)
        live.finish()
    assert live.replies[one.request_id].statistics.declined.keys() <= {"last_token"}


def test_a_client_that_wants_none_changes_nothing_for_its_neighbour(
    model: LoadedModel, golden_llama: Path, tmp_path: Path
) -> None:
    off = SpeculationSettings(enabled=False)
    asked = [request(0, tokens=40), msgspec.structs.replace(request(1, tokens=40), speculation=off)]
    deployed = config(golden_llama / "llama.f16.gguf", store=tmp_path / "gates.yaml")
    passed(model, deployed=deployed, ratios=PAYS)
    with watching(model, deployed=deployed) as watch:
        live = Live(model, watch, asked=asked)
        for one in asked:
            live.engine.submit(one)
        live.finish()
    drafted, plain = (live.replies[one.request_id].statistics for one in asked)
    assert drafted.draft_n > 0
    assert (plain.draft_n, plain.declined) == (0, {"disabled_by_request": 39})


def test_speculation_stops_at_four_and_resumes_at_three_by_the_record(
    model: LoadedModel, golden_llama: Path, tmp_path: Path
) -> None:
    """One long reply is on its way all the time; three short ones come and go."""
    asked = [request(0, tokens=110), *(request(number, tokens=8 + 4 * number) for number in (1, 2, 3))]
    deployed = config(golden_llama / "llama.f16.gguf", store=tmp_path / "gates.yaml")
    passed(model, deployed=deployed, ratios=CROSSOVER)
    seen: Counter[tuple[int, bool]] = Counter()
    with watching(model, deployed=deployed) as watch:
        assert watch.rule.stop_above == 3
        live = Live(model, watch, asked=asked)
        long = live.replies[asked[0].request_id]
        live.engine.submit(asked[0])
        live.step(4)
        alone = long.statistics.draft_n
        for one in asked[1:]:
            live.engine.submit(one)
        among = 0
        for _ in range(200):
            live.step()
            active = len(live.engine.scheduler.active)
            seen[active, live.drafts.asked > 0] += 1
            among = long.statistics.draft_n if active == 4 else among
            if not active:
                break
        live.finish()
    assert {active for active, speculates in seen if speculates} == {1, 2, 3}
    assert seen[4, False] > 4
    assert 0 < alone <= among < long.statistics.draft_n
    assert long.statistics.declined["too_many_slots"] > 0
    assert [live.replies[one.request_id].statistics.prompt_n for one in asked] == [16, 16, 16, 16]
