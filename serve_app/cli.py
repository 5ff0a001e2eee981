"""The command line: `outrider run`, `generate`. Wiring only; each command's work is in a module of its own."""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Literal

import typer

from deployments.messages.errors import OutriderError
from serve_app.chip_placement import check_devices, settle_platform
from serve_app.gating.commands import app as gate

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(gate, name="gate")

Model = Annotated[str, typer.Argument(help="A .gguf file, a folder with safetensors, a name or a hub repository.")]
Speculation = Annotated[
    Literal["auto", "off", "ngram"], typer.Option(help="auto runs what has passed the gates here; ngram runs unproven.")
]
GeneratedSpeculation = Annotated[Literal["auto", "off", "ngram"], typer.Option(help="auto is ngram: it asks no gates.")]
DraftPlacement = Annotated[
    Literal["remote", "chip"],
    typer.Option(help="Where drafts are made: in replicas of their own, or on the verifier's device."),
]
DraftK = Annotated[int, typer.Option(min=1, max=8, help="The most drafts a request gets in one window.")]
Slots = Annotated[int, typer.Option(min=1, max=128, help="Requests in the batch at once; 128 fill a window.")]
ServedName = Annotated[
    str | None, typer.Option(help="The id clients name; by default MODEL's name or repository, else the file's own.")
]
KeysFile = Annotated[str, typer.Option(help="A file with one API key per line.")]
AdminKeysFile = Annotated[str, typer.Option(help="A file with one key per line, for /admin.")]
Gates = Annotated[str, typer.Option(help="Where the gates are: file:PATH or redis://HOST; by default your own file.")]
Context = Annotated[int, typer.Option("--ctx", min=8, help="The most tokens of prompt and reply together.")]
PrecisionName = Annotated[
    Literal["int8", "int8-plain", "w8a16", "bf16", "f32"],
    typer.Option("--precision", help="How weights and products are kept."),
]

TensorParallel = Annotated[
    int, typer.Option("--tensor-parallel", "--tp", min=1, help="Devices of a replica that share the model.")
]


@app.command()
def run(
    model: Model = "smollm2-135m",
    *,
    speculation: Speculation = "auto",
    placement: DraftPlacement = "remote",
    draft_k: DraftK = 7,
    slots: Slots = 8,
    context: Context = 2048,
    precision: PrecisionName = "int8",
    tensor_parallel: TensorParallel = 1,
    drafters: Annotated[int, typer.Option(min=1, help="Drafter replicas.")] = 1,
    verifiers: Annotated[int, typer.Option(min=1, help="Verifier replicas.")] = 1,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 8000,
    served_name: ServedName = None,
    api_keys_file: KeysFile = "",
    admin_keys_file: AdminKeysFile = "",
    gates: Gates = "",
) -> None:
    """Serve a model on this machine until Ctrl-C."""
    from serve_app.config import AppConfig, VerifierConfig
    from serve_app.local import serving
    from serve_app.model_check import check_model
    from serve_app.model_fetch import resolve_model
    from serve_app.model_fetch import served_name as default_name

    page_size = VerifierConfig().page_size
    if context % page_size and context > page_size:
        raise typer.BadParameter(f"{context} is not a multiple of {page_size}, the page size", param_hint="--ctx")
    check_devices(os.environ, wanted=tensor_parallel)
    check_model(path := resolve_model(model), context=context)
    name = served_name or default_name(model)
    config = AppConfig.model_validate(
        {
            "model": str(path.absolute()),
            "served_name": name,
            "drafter": _drafter(speculation, placement=placement, replicas=drafters),
            "verifier": {
                "slots": slots,
                "context": context,
                "precision": precision,
                "tensor_parallel": tensor_parallel,
                "draft_k": draft_k,
                "replicas": verifiers,
            },
            "ingress": {"api_keys_file": api_keys_file, "admin_keys_file": admin_keys_file},
            "gates": {"store": gates} if gates else {},
        }
    )
    print(_announcement(name or path.name), flush=True)
    interrupt = _Interrupt()
    interrupt.listen()
    try:
        with serving(config, host=host, port=port) as service:
            # Again: Ray, when it starts, takes SIGTERM for itself.
            interrupt.listen()
            print(_welcome(url=service.url, model=service.model, needs_key=bool(api_keys_file)), flush=True)
            threading.Event().wait()
    except KeyboardInterrupt:
        print("stopped", flush=True)


@app.command()
def generate(
    model: Model = "smollm2-135m",
    *,
    prompt: Annotated[str, typer.Option(help="What the user says.")],
    max_tokens: Annotated[int, typer.Option(min=1)] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0)] = 0.0,
    seed: Annotated[int, typer.Option()] = 0,
    speculation: GeneratedSpeculation = "auto",
    draft_k: DraftK = 7,
    context: Context = 2048,
    precision: PrecisionName = "int8",
) -> None:
    """Answer one prompt in this process, without Ray; prints the reply as it comes, then what speculation did."""
    from serve_app.generate import GenerateOptions, generate_reply

    options = GenerateOptions(
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        draft_k=0 if speculation == "off" else draft_k,
        context=context,
        precision=precision,
    )
    statistics = generate_reply(model, options=options, write=lambda text: print(text, end="", flush=True))
    print()
    print(json.dumps(statistics), file=sys.stderr)


@app.command()
def exact(
    model: Model = "smollm2-135m",
    *,
    prompts: Annotated[Literal["mt_bench", "copy", "quick"], typer.Option(help="The set of prompts.")] = "mt_bench",
    tokens: Annotated[int, typer.Option(min=1, help="The most tokens of a reply.")] = 64,
    context: Context = 2048,
    precision: PrecisionName = "int8",
) -> None:
    """Compare replies with and without speculation, token for token; exit status 1 on any difference."""
    # Four services, each asked from an event loop of its own: Ray, as it is imported, must not bind itself to one.
    os.environ["RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP"] = "1"
    from rich.console import Console

    from serve_app.model_fetch import resolve_model
    from serve_app.proving.exact import ExactOptions, Prover
    from serve_app.proving.report import TABLE_WIDTH

    options = ExactOptions(
        model=str(resolve_model(model).absolute()), prompts=prompts, tokens=tokens, context=context, precision=precision
    )
    proof = Prover(options, say=lambda text: print(text, file=sys.stderr, flush=True)).run()
    console = Console()
    console.width = max(console.width, TABLE_WIDTH)
    console.print(proof.table(f"{model}, {precision}, {prompts}, {tokens} tokens"))
    print(*proof.problems, proof.summary, sep="\n")
    if proof.problems:
        raise typer.Exit(1)


@app.command()
def bench(
    model: Model = "smollm2-135m",
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter runs: about two minutes.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every figure to this file, too.")] = None,
    draft_k: DraftK = 7,
    slots: Slots = 8,
    context: Context = 2048,
    precision: PrecisionName = "int8",
) -> None:
    """Measure speed with and without speculation, and what it is made of; takes about eight minutes."""
    from serve_app.benchmark.command import BenchOptions, run_command

    run_command(
        model,
        options=BenchOptions(
            is_quick=quick, json_file=json_file, draft_k=draft_k, slots=slots, context=context, precision=precision
        ),
    )


@app.command()
def inspect(
    checkpoint: Annotated[str, typer.Argument(help="A .gguf file, a folder with safetensors, a name or a repository.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Say what a checkpoint is, what it takes and what could draft for it; reads headers, no weights."""
    from serve_app.inspecting.report import inspect_checkpoint
    from serve_app.model_fetch import resolve_model

    inspection = inspect_checkpoint(resolve_model(checkpoint))
    print(inspection.to_json().decode() if as_json else "\n".join(inspection.lines()))


@app.command("compile")
def compile_programs(
    *,
    chip: Annotated[str, typer.Option(help="The slice: v5e-1, v5e-4, v5e-8, v5p-1, v5p-4, v6e-1, v6e-4, ...")],
    model: Annotated[str, typer.Option(help="A model as MODEL is elsewhere, or a file with the shape of one.")],
    precision: PrecisionName = "int8",
    slots: Slots = 8,
    context: Context = 2048,
    draft_k: Annotated[int, typer.Option(min=0, max=8, help="The most drafts a request gets; 0 for none.")] = 7,
    placement: DraftPlacement = "remote",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Compile a deployment's programs for TPUs that are not here; say what fits and estimate how fast it would be."""
    from serve_app.compiling.command import CompileOptions, run_command

    options = CompileOptions(
        chip=chip,
        model=model,
        precision=precision,
        slots=slots,
        context=context,
        draft_k=draft_k,
        drafts_on_chip=placement == "chip",
        as_json=as_json,
    )
    if not run_command(options):
        raise typer.Exit(1)


@app.command()
def models() -> None:
    """List the models that have a name here."""
    from serve_app.catalog import Catalog, catalog_lines

    print("\n".join(catalog_lines(Catalog())))


def main() -> None:
    """The console script: errors of ours are one sentence and exit status 1."""
    settle_platform(os.environ)
    try:
        app()
    except OutriderError as error:
        print(f"outrider: {error}", file=sys.stderr)
        sys.exit(1)


class _Interrupt:
    """Ctrl-C, a polite kill or a closed terminal stops the command; a second one must not cut the clearing up short."""

    def __init__(self) -> None:
        self._stopping = False

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self)

    def __call__(self, *_: object) -> None:
        if not self._stopping:
            self._stopping = True
            print("stopping", flush=True)
            raise KeyboardInterrupt


def _drafter(speculation: str, *, placement: str, replicas: int) -> dict[str, str | int]:
    """The section of the configuration. Raises `typer.BadParameter` for a placement that the kind does not have."""
    if placement == "chip" and speculation != "ngram":
        raise typer.BadParameter("chip needs --speculation ngram", param_hint="--placement")
    section: dict[str, str | int] = {"kind": speculation, "reason": f"--speculation {speculation}"}
    if speculation != "off":
        section["replicas"] = replicas
    if speculation == "ngram":
        section["placement"] = placement
    return section


def _announcement(name: str) -> str:
    return f"starting {name}: Ray, then the model; the first start also compiles (a minute or two)"


def _welcome(*, url: str, model: str, needs_key: bool) -> str:
    key = " -H 'Authorization: Bearer KEY'" if needs_key else ""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Name three rivers."}], "stream": True})
    return f"""
ready: {url}/v1   (model id: {model})

  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'

metrics: {url}/metrics   stop with Ctrl-C
"""


if __name__ == "__main__":
    main()
