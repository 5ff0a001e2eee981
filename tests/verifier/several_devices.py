"""One model on several virtual devices, run as a program of its own: JAX fixes their number when it starts.

    python -m tests.verifier.several_devices JOB.json

The job says what to load and what to ask; the answer, on stdout, is what was replied on each number of devices with
each drafter.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

MOST_DEVICES = 8


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to run.

    Attributes:
        model: a checkpoint.
        golden: the folder that prompts come from.
        devices: on how many at a time.
        drafters: names of `comparing.DRAFTERS`; each is run on every number of devices, after plain decoding.
        is_shaped: whether requests with penalties, biases and log-probabilities are asked too.
        tokens: the most of each reply.
        rounds: windows of one device call; if any, one more run is called `chip`, which drafts on the devices.
    """

    model: str
    golden: str
    precision: str
    devices: tuple[int, ...]
    drafters: tuple[str, ...]
    ladder: tuple[int, ...] = (8, 16)
    is_shaped: bool = True
    tokens: int = 24
    rounds: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of it on one number of devices.

    Attributes:
        replies: by drafter and request; plain ones under `plain`. Everything a client would see.
        accepted: drafts, by drafter.
        joined: windows that were run in calls of several.
        refused: rungs and calls that the probe did not let serve, and why.
        devices, kernels: as the gates would record them.
    """

    replies: dict[str, dict[str, str]]
    accepted: dict[str, int]
    joined: int
    refused: dict[str, str]
    devices: int
    kernels: str


def outcomes(job: Job, /, *, folder: Path) -> dict[int, Outcome]:
    """Runs the job in a process with eight virtual devices."""
    path = folder / "job.json"
    path.write_text(json.dumps(asdict(job)))
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={MOST_DEVICES}",
    }
    command = [sys.executable, "-m", "tests.verifier.several_devices", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {int(count): Outcome(**outcome) for count, outcome in json.loads(done.stdout).items()}


def _run(job: Job, *, folder: Path) -> dict[int, Outcome]:
    return {devices: _on(devices, job=job, folder=folder) for devices in job.devices}


def _on(devices: int, *, job: Job, folder: Path) -> Outcome:
    from msgspec.structs import replace

    from deployments.lm.drafting.ngram import NgramSettings
    from deployments.lm.kernels.choice import Kernels
    from deployments.lm.quant.linear import Precision
    from deployments.verifier.calls import ChipSettings
    from deployments.verifier.drafts import NoDrafts
    from deployments.verifier.loading import load_model
    from deployments.verifier.sizing import ModelSettings
    from tests.verifier.comparing import DRAFTERS, MOST_DRAFTS, requests_for, run, shaped_requests_for, write_oracle
    from tests.verifier.serving import Tallies, serve

    chip = ChipSettings(drafter=NgramSettings(min_n=1, max_n=2, max_k=7), rounds=job.rounds)
    model = load_model(
        ModelSettings(
            model_path=job.model,
            precision=Precision(job.precision),
            # What several devices take of themselves; one would take native kernels.
            kernels=Kernels.XLA if devices == 1 else Kernels.AUTO,
            tensor_parallel=devices,
            slots=8,
            context=512,
            page_size=16,
            draft_k=MOST_DRAFTS,
            ladder=job.ladder,
            chip=chip if job.rounds else None,
        ),
        progress=lambda text: print(devices, text, file=sys.stderr, flush=True),
    )
    asked = (*requests_for(Path(job.golden)), *(shaped_requests_for(Path(job.golden)) if job.is_shaped else ()))
    # Calls of several windows are for replies that are longer than the golden ones.
    most = {one.request_id: job.tokens if job.rounds else min(one.max_tokens, job.tokens) for one in asked}
    requests = [replace(one, max_tokens=most[one.request_id]) for one in asked]
    runs = {"plain": run(model, requests, drafts=NoDrafts())}
    oracle = write_oracle(folder / f"oracle-{devices}.json", requests=requests, replies=runs["plain"])
    runs |= {name: run(model, requests, drafts=DRAFTERS[name](oracle)) for name in job.drafters}
    tallies = Tallies()
    if job.rounds:
        engine = model.engine(drafts=model.chip_drafts(), metrics=tallies, on_chip=True)
        runs["chip"] = serve(engine, requests)
    return Outcome(
        replies={
            drafter: {name: repr((reply.tokens, reply.finish, reply.logprobs)) for name, reply in replies.items()}
            for drafter, replies in runs.items()
        },
        accepted={
            drafter: sum(_accepted(reply.statistics.rounds) for reply in replies.values())
            for drafter, replies in runs.items()
        },
        joined=tallies.counters["round_windows"],
        refused={
            str(key): reason for key, reason in (*model.report.refused.items(), *model.report.refused_calls.items())
        },
        devices=model.facts().devices,
        kernels=model.kernels.value,
    )


def _accepted(rounds: tuple[tuple[int, ...], ...]) -> int:
    return sum(count * windows for row in rounds for count, windows in enumerate(row))


if __name__ == "__main__":
    path = Path(sys.argv[1])
    job = Job(**json.loads(path.read_text()))
    print(json.dumps({count: asdict(outcome) for count, outcome in _run(job, folder=path.parent).items()}))
