"""Compares Outrider with llama.cpp's server: same file, same machine, same prompts, over HTTP, in alternation.

`python -m tests.bench.build_peer FOLDER` builds the server. Tables go to standard output, progress to standard error.
"""

import argparse
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import ValidationError
from rich.console import Console

from deployments.messages.errors import ConfigError, OutriderError
from serve_app.benchmark.alternation import Effort
from serve_app.benchmark.machine import machine_facts
from serve_app.benchmark.run import read_texts
from serve_app.benchmark.service import await_drafter
from serve_app.config import AppConfig
from serve_app.local import serving
from serve_app.model_fetch import resolve_model
from tests.bench.cases import MAX_TOKENS, STREAMS, Case, cases
from tests.bench.comparison import Chosen, Comparison, FigureResult, Say, compare, try_variants
from tests.bench.llama_server import Peer
from tests.bench.tables import tables

_WIDTH = 140


@dataclass(frozen=True, kw_only=True)
class Efforts:
    """Rounds of the trials and of the comparison, and fewer of them where eight streams run at once."""

    trial: int
    trial_many: int
    rounds: int
    rounds_many: int

    def trying(self, case: Case, /) -> Effort:
        """How often the peer's settings are tried."""
        return self._effort(self.trial_many if case.is_crowded else self.trial, case=case)

    def comparing(self, case: Case, /) -> Effort:
        """How often both sides run."""
        return self._effort(self.rounds_many if case.is_crowded else self.rounds, case=case)

    @staticmethod
    def _effort(rounds: int, *, case: Case) -> Effort:
        return Effort(rounds=min(rounds, case.turns - 1), warm_ups=1)


FULL = Efforts(trial=4, trial_many=2, rounds=12, rounds_many=6)
QUICK = Efforts(trial=1, trial_many=1, rounds=3, rounds_many=2)


def run(
    config: AppConfig, /, *, peer: Peer, names: tuple[str, ...], alone: bool, efforts: Efforts, say: Say
) -> Comparison:
    """The peer's settings first, while nothing else is loaded, then both sides.

    Raises:
        OutriderError: a server did not start, or refused a request.
    """
    started = time.perf_counter()
    machine, version = machine_facts(), peer.version()
    texts = read_texts(config, max_tokens=MAX_TOKENS)
    everything = cases(texts, cores=machine.cores)
    wanted = [case for case in everything if not names or any(name in case.name for name in names)]
    if not wanted:
        raise ConfigError(f"--only leaves no case; there are: {'; '.join(case.name for case in everything)}")
    chosen = []
    for case in wanted:
        say(f"llama-server alone: {case.name}, {len(case.variants)} settings")
        chosen.append(try_variants(peer, case=case, effort=efforts.trying(case)))
    results = () if alone else _compare_all(config, peer=peer, chosen=chosen, efforts=efforts, say=say)
    return Comparison(
        machine=machine,
        peer=version,
        model=peer.model.name,
        precision=config.verifier.precision.value,
        trials=tuple(trial for choice in chosen for trial in choice.trials),
        results=results,
        seconds=time.perf_counter() - started,
    )


def _compare_all(
    config: AppConfig, *, peer: Peer, chosen: list[Chosen], efforts: Efforts, say: Say
) -> tuple[FigureResult, ...]:
    say("starting Outrider")
    results: list[FigureResult] = []
    with serving(config, port=0, quiet=True) as service:
        await_drafter(service)
        for choice in chosen:
            say(f"in alternation: {choice.case.name}; llama-server with {choice.best.name}")
            results += compare(service, peer=peer, chosen=choice, effort=efforts.comparing(choice.case))
    return tuple(results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path, help="llama-server, as tests.bench.build_peer makes it")
    parser.add_argument("--model", default="smollm2-135m", help="a GGUF file, or what `outrider run` takes")
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORDS", help="cases with these words in the name"
    )
    parser.add_argument("--peer-alone", action="store_true", help="only llama-server, in all its settings")
    parser.add_argument("--quick", action="store_true", help="fewer rounds; not to be quoted")
    parser.add_argument("--precision", default="int8", help="Outrider's arithmetic (default: %(default)s)")
    parser.add_argument("--draft-k", type=int, default=7, help="Outrider's longest draft (default: %(default)s)")
    parser.add_argument(
        "--ctx", type=int, default=2048, help="tokens of a request, on both sides (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure, in seconds")
    return parser.parse_args()


def main() -> None:
    """From options to tables and, if wanted, a file."""
    options = _options()
    # So that a server that was started does not outlive a comparison that is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    started = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - started:5.0f} s  {text}", file=sys.stderr, flush=True)

    try:
        if options.json is not None:
            # Now, not after ten minutes; what is in it stays until there is something better.
            options.json.open("ab").close()
        model = resolve_model(options.model).absolute()
        verifier = {
            "slots": STREAMS,
            "context": options.ctx,
            "precision": options.precision,
            "draft_k": options.draft_k,
        }
        config = AppConfig.model_validate(
            {
                "model": str(model),
                "drafter": {"kind": "ngram"},
                "gates": {"store": ""},
                "verifier": verifier,
            }
        )
        comparison = run(
            config,
            peer=Peer(binary=options.binary.expanduser(), model=model, context=options.ctx),
            names=tuple(options.only),
            alone=options.peer_alone,
            efforts=QUICK if options.quick else FULL,
            say=say,
        )
    except (OutriderError, ValidationError, OSError) as error:
        sys.exit(f"error: {error}")
    # A file or a pipe has no width of its own, and the tables need more than the 80 columns it would be given.
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(tables(comparison))
    if options.json is not None:
        options.json.write_bytes(orjson.dumps(comparison, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


if __name__ == "__main__":
    main()
