"""`ssmspec conform engine`: is this engine lossless, and does it run the model of the checkpoint?"""

import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.console import Console

from ssmspec_ref.options import files
from ssmspec_ref.options.extras import installing
from ssmspec_ref.options.typed import Typed
from ssmspec_ref.options.words import one_of

from ..errors import ConformanceError
from ..isolation.memory import allowed
from ..progress.estimate import left
from ..refusal import FAILED, refused
from .errors import NotStarted

if TYPE_CHECKING:
    from .judge import Found
    from .protocol import Engine, Options

ENGINE = "vllm, llama.cpp, mlx, transformers, ssmspec, http:URL (SGLang, ..), or program:COMMAND."
MODEL = "Folder of a checkpoint. May be repeated. Default: small random checkpoints."
DTYPE = "What the engine computes in: float32, bfloat16 or float64. Default: float32; of qwen3_5-128 bfloat16."
STORED_AS = "How small checkpoints are stored: float32 or bfloat16. Default: float32; of qwen3_5-128 and -bf16 bfloat16."
SHRINK = "Seconds of work, of judge and engine, to reduce each failure. Default: 90; 0 reports failures as they came."
REPORT = Path("engine-report.json")
SMALL = ("mamba2", "bamba", "qwen3_5")


class Tier(StrEnum):
    """The number of schedules per configuration, and the number of configurations."""

    smoke = "smoke"
    standard = "standard"
    deep = "deep"


MANY = {Tier.smoke: 8, Tier.standard: 60, Tier.deep: 400}
SAMPLED = {Tier.smoke: 0, Tier.standard: 240, Tier.deep: 2000}
"""Requests that are sampled in each configuration, for the law of sampled tokens."""
TIGHT = 96
"""Room for the tokens of three requests, of which two fill it: some are preempted. The longest that is drawn has 90."""


def engine(
    context: typer.Context,
    engine: Annotated[str, typer.Option(help=ENGINE)],
    model: Annotated[list[Path] | None, typer.Option(help=MODEL)] = None,
    family: Annotated[
        list[str] | None, typer.Option(help="Only these families of small checkpoints. May be repeated.")
    ] = None,
    control: Annotated[str | None, typer.Option(help="A family to judge first, for comparison, such as llama.")] = None,
    drafter: Annotated[Path | None, typer.Option(help="The drafter's folder. Default: MODEL-drafter, if it exists.")] = None,
    python: Annotated[str | None, typer.Option(help="The Python interpreter of the engine's environment.")] = None,
    plain: Annotated[str | None, typer.Option(help="For http:URL: the URL of the same server without speculation.")] = None,
    configuration: Annotated[
        list[str] | None, typer.Option(help="Only these configurations, and plain. May be repeated.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help=DTYPE)] = None,
    stored: Annotated[str | None, typer.Option(help=STORED_AS)] = None,
    tier: Annotated[Tier, typer.Option(help="smoke, standard or deep.")] = Tier.standard,
    schedules: Annotated[int | None, typer.Option(min=1, help="Schedules per configuration. Default: by tier.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the schedules and of the small checkpoints.")] = 0,
    timeout: Annotated[float, typer.Option(min=0.1, max=86_400, help="Time limit of one answer, in seconds.")] = 120.0,
    memory: Annotated[
        float | None, typer.Option(min=0.1, help="Memory limit of the engine in GiB. Default: 0.8 of the machine's memory.")
    ] = None,
    shrink: Annotated[float | None, typer.Option(min=0, help=SHRINK)] = None,
    first: Annotated[bool, typer.Option("-x", help="Stop at the first failure: run no other configuration.")] = False,
    max_failures: Annotated[int | None, typer.Option(min=1, help="Stop after this many failures.")] = None,
    report: Annotated[Path, typer.Option(help="The file to write.")] = REPORT,
) -> None:
    """Test a whole engine from outside. Exits with 1 if a law is broken or the result is unknown.

    Two separate verdicts: *same model?* compares the plain output with the checkpoint in float64; *lossless?* compares every
    configuration (drafts, batches, chunks, caches) with the engine's own plain output.
    """
    try:
        from .judge import Found
        from .known import PROGRAM, is_server, opener
        from .protocol import Dtype
        from .small import CONFIGS, STORED
        from .table import show, write
    except ImportError as error:
        raise refused(ConformanceError(f"schedules need hypothesis ({error}); {installing('engine')}")) from error
    progress = Console(stderr=True)
    for option, given, every in (("--dtype", dtype, get_args(Dtype)), ("--stored", stored, STORED)):
        if given is not None:
            one_of(option, given, every)
    for option, names in (("--family", family or []), ("--control", [control] if control else [])):
        for name in names:
            one_of(option, name, CONFIGS)
    files.writable("--report", report, parents=True, whole=True)
    typed = Typed(context)
    if is_server(engine):
        typed.unused(
            ["--python", "--memory", "--configuration"], "a server was started by somebody else, in one configuration"
        )
    else:
        typed.unused(["--plain"], "it is the server without speculation of an http: engine", "give --configuration plain")
    if first:
        typed.unused(["--max-failures"], "-x stops at the first failure", "omit -x")
    most = 1 if first else max_failures
    if engine.startswith(PROGRAM):
        typed.unused(["--python"], "the command of program: starts the engine", "put it into the command")
    if not model:
        typed.unused(["--drafter"], "the small checkpoints have drafters of their own", "give --model")
    elif not (family or control):
        typed.unused(["--stored"], "it says how small checkpoints are made, and --model names one", "omit --model")
    count = MANY[tier] if schedules is None else schedules
    limit = None if memory is None else allowed(memory)
    try:
        if engine == "ssmspec" and python is None:
            python = sys.executable
        opened = opener(engine, python, timeout, limit)
        other = None if plain is None else opener(plain, None, timeout)
        with tempfile.TemporaryDirectory() as made:
            found: dict[str, Found] = {}
            of_each = [
                (
                    name,
                    folder,
                    chosen_of(configurations(draft, tier, dtype or usual(name), beside(folder, "recurrent")), configuration),
                )
                for name, folder, draft in checkpoints(model, family, control, drafter, Path(made), (seed, stored))
            ]
            watch = Watch(progress, sum(1 if is_server(engine) else len(chosen) for *_, chosen in of_each))
            for name, folder, chosen in of_each:
                left_over = None if most is None else most - sum(len(before.failures) for before in found.values())
                if left_over is not None and left_over <= 0:
                    found[name] = Found(not_run=list(chosen))
                    continue
                progress.print(f"judging {engine} on {name}", style="dim", highlight=False, markup=False)
                many = (count, seed, SAMPLED[tier])
                try:
                    one = judged(opened, other, folder, chosen, is_server(engine), many, watch, shrink, left_over)
                except NotStarted as error:
                    if not found:
                        raise NotStarted(f"{engine} did not start (run its command by hand to see more): {error}") from error
                    one = Found()
                    one.ended("plain", "repeated", error)
                one.named = frozenset([*(configuration or ()), *(["model-3"] if drafter else [])])
                where = ["--model" if model and name not in SMALL else "--family", name]
                line = ["--engine", engine, *where, "--seed", str(seed), "--schedules", str(count), "--tier", tier.value]
                line += [] if dtype is None else ["--dtype", dtype]
                line += [] if stored is None else ["--stored", stored]
                line += [] if shrink is None else ["--shrink", f"{shrink:g}"]
                found[name] = rerunnable(one, [*line, *(["--python", python] if python and engine != "ssmspec" else [])])
    except ConformanceError as error:
        raise refused(error) from error
    show(Console(), found)
    write(report, engine, found, seed)
    progress.print(f"report: {report}", style="dim", highlight=False, markup=False)
    if not found or not all(one.green for one in found.values()):
        raise typer.Exit(FAILED)


EVERY = 20.0
"""Seconds between two lines of progress within a configuration."""


class Watch:
    """Prints each configuration that has ended, with an estimate of the time that the others take, and now and then the
    schedule that begins."""

    def __init__(self, console: Console, count: int) -> None:
        self.console, self.count, self.done, self.began = console, count, 0, time.monotonic()
        self.said = self.began

    def __call__(self, line: str, ended: bool) -> None:
        if not ended and time.monotonic() - self.said < EVERY:
            return
        self.said = time.monotonic()
        self.done += ended
        told = f"{self.done}/{self.count}  {line}{left(self.began, self.done, self.count, 1) if ended else ''}"
        self.console.print(f"  {told}", style="dim", highlight=False, markup=False, soft_wrap=True)


def beside(folder: Path, what: str) -> Path:
    """The folder with this ending beside a checkpoint."""
    return folder.with_name(f"{folder.name}-{what}")


def checkpoints(
    model: list[Path] | None,
    family: list[str] | None,
    control: str | None,
    drafter: Path | None,
    made: Path,
    how: tuple[int, str | None],
) -> list[tuple[str, Path, Path | None]]:
    """Name, folder and drafter of each checkpoint, the control first; `how` small ones are made: seed, and dtype where it is
    not the family's own.

    Raises: ConformanceError.
    """
    from .small import pair

    if drafter is not None and not (drafter / "config.json").is_file():
        raise ConformanceError(f"--drafter {drafter} holds no config.json; give the folder of a checkpoint")
    wanted = [] if control is None else [control]
    wanted += list(family or (() if model else SMALL))
    changed = {} if how[1] is None else {"dtype": how[1]}
    found: list[tuple[str, Path, Path | None]] = [(name, *pair(name, made, how[0], **changed)) for name in wanted]
    for folder in model or ():
        if not (folder / "config.json").is_file():
            why = "holds no config.json" if folder.is_dir() else "is not a folder"
            raise ConformanceError(f"--model {folder} {why}; give the folder of a checkpoint")
        there = beside(folder, "drafter")
        found.append((str(folder), folder.resolve(), drafter or (there.resolve() if there.is_dir() else None)))
    return found


def usual(name: str) -> str:
    """What an engine computes a checkpoint in, unless the user says otherwise."""
    from .small import COMPUTED

    return COMPUTED.get(name, "float32")


def configurations(drafter: Path | None, tier: Tier, dtype: str, recurrent: Path | None = None) -> "dict[str, Options]":
    """The configurations of a tier; the engine refuses those that it does not have. `recurrent` is a drafter too, if it is
    there."""
    from .protocol import Options

    plain = Options(dtype=dtype)  # type: ignore[arg-type]
    change = plain.model_copy
    found = {
        "plain": plain,
        "ngram-4": change(update={"speculation": "ngram"}),
        "chunk-8": change(update={"chunk": 8}),
        "cache": change(update={"cache": True}),
        "tight": change(update={"slots": 3, "tokens": TIGHT}),
    }
    if tier is not Tier.smoke:
        found |= {
            "ngram-1": change(update={"speculation": "ngram", "drafts": 1}),
            "ngram-4 chunk-8": change(update={"speculation": "ngram", "chunk": 8}),
            "ngram-4 cache": change(update={"speculation": "ngram", "cache": True}),
            "graphs": change(update={"graphs": True}),
            "ngram-4 graphs": change(update={"speculation": "ngram", "graphs": True}),
        }
    drafts = {"speculation": "ngram"} if drafter is None else {"speculation": "model", "drafter": str(drafter)}
    found["varied-4"] = change(update={**drafts, "varied": True})
    if drafter is not None:
        found["model-3"] = change(update={"speculation": "model", "drafter": str(drafter), "drafts": 3})
    if recurrent is not None and recurrent.is_dir():
        found["model-3 recurrent"] = change(update={"speculation": "model", "drafter": str(recurrent.resolve()), "drafts": 3})
    return found


def chosen_of(every: "dict[str, Options]", wanted: list[str] | None) -> "dict[str, Options]":
    """The requested configurations. Raises: OptionError for one that does not exist."""
    for name in wanted or ():
        one_of("--configuration", name, every)
    return {name: options for name, options in every.items() if not wanted or name == "plain" or name in wanted}


def judged(
    opened: Callable[[], "Engine"],
    plain: "Callable[[], Engine] | None",
    folder: Path,
    chosen: "dict[str, Options]",
    server: bool,
    many: tuple[int, int, int],
    watch: Callable[[str, bool], None],
    shrink: float | None = None,
    most: int | None = None,
) -> "Found":
    """All configurations on one checkpoint; for a server, the one that it was started with."""
    from .checkpoint import NoOracle, read
    from .judge import Judge

    weights, notes = None, []
    try:
        weights = read(folder)
    except NoOracle as error:
        notes = [f"same model: not judged: {error}"]
    if server:
        first = next(iter(chosen.values()))
        chosen = {"served": first} if plain else {"plain": first}
    size = 64 if weights is not None else vocabulary(folder)
    schedules, seed, samples = many
    found = Judge(opened, str(folder), weights, schedules, seed, watch, size, plain, samples, shrink, most).run(chosen)
    found.notes = [*notes, *found.notes]
    return found


def vocabulary(folder: Path) -> int:
    """The vocabulary size of a checkpoint without an oracle."""
    size = json.loads((folder / "config.json").read_text()).get("vocab_size", 64)
    return size if isinstance(size, int) and size > 1 else 64


def rerunnable(found: "Found", command: list[str]) -> "Found":
    """Every failure with the command that reproduces it."""
    for n, failure in enumerate(found.failures):
        line = [
            *command,
            *([] if failure.configuration in ("plain", "served") else ["--configuration", failure.configuration]),
        ]
        found.failures[n] = replace(failure, rerun=f"again: ssmspec conform engine {shlex.join(line)}")
    return found


def register(app: typer.Typer) -> None:
    """Add this command to the suite's command line."""
    app.command()(engine)
