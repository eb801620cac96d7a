"""`ssmspec traffic`: Poisson request traffic; latency and throughput."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssmspec_ref.errors import OptionError, ParameterError, SpecError
from ssmspec_ref.options import files
from ssmspec_ref.options.typed import Typed
from ssmspec_ref.options.words import one_of

from .generate import WITHOUT_A_MODEL, write_whole
from .options import CheckpointOption, ChooseOption, DeviceOption, DraftsOption, MethodOption
from .refusal import refused
from .shipped import shipped

if TYPE_CHECKING:
    from ..engine.loop import Engine
    from ..engine.scheduler import Policy
    from ..engine.traffic import Traffic

app = typer.Typer(pretty_exceptions_enable=False, help="Serve Poisson request traffic; measure latency and throughput.")


QUIET = 5.0
POLICIES = ("continuous", "clearing")


@app.callback(invoke_without_command=True)
def traffic(
    context: typer.Context,
    checkpoint: CheckpointOption = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Use a small model with random weights, on the CPU.")] = False,
    drafter: Annotated[
        str | None, typer.Option(help="A checkpoint's folder or name, ngram or lookup. Omit for plain decoding.")
    ] = None,
    method: MethodOption = None,
    drafts: DraftsOption = 4,
    choose: ChooseOption = False,
    rate: Annotated[float, typer.Option(help="Mean requests per second.")] = 4.0,
    requests: Annotated[int, typer.Option(min=1, help="Number of requests.")] = 64,
    policy: Annotated[str, typer.Option(help="continuous batching, or clearing: serve the queue in batches.")] = "continuous",
    capacity: Annotated[int, typer.Option(min=1, help="Clearing: start a batch when this many requests wait.")] = 8,
    wait: Annotated[float, typer.Option(min=0, help="Clearing: or when the oldest has waited this many seconds.")] = 0.1,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens generated per request.")] = 64,
    length: Annotated[int, typer.Option(min=1, max=1_000_000, help="Random tokens per prompt.")] = 32,
    slots: Annotated[int, typer.Option(min=1, help="Requests decoded at once.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of arrivals and prompts.")] = 0,
    device: DeviceOption = "cpu",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures as JSON, in seconds and tokens per second.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write times and tokens as JSON.")] = None,
) -> None:
    """Replay Poisson arrivals; print latency, time to the first token and throughput."""
    try:
        if not rate > 0:
            raise OptionError(f"--rate is {rate:g}; it must be more than 0 requests a second")
        one_of("--policy", policy, POLICIES)
        files.writable("--out", out)
        _check_use(Typed(context), tiny, drafter, policy, (capacity, slots))
        checkpoint, drafter = shipped(checkpoint), str(shipped(Path(drafter), WITHOUT_A_MODEL)) if drafter else None
        engine = _engine(checkpoint, tiny, drafter, method, drafts, choose, slots, length + tokens, device)
        typer.echo(f"{requests} requests at {rate:g} a second take {requests / rate:.0f} s or more", err=True)
        found = _replay(engine, _policy(policy, capacity, wait), rate, requests, tokens, length, seed)
    except (SpecError, ModuleNotFoundError) as error:
        raise refused(error) from error
    held = summary(found)
    typer.echo(json.dumps(held) if as_json else table(held))
    if out is not None:
        times = [
            {"arrival": s.arrival, "start": s.start, "first": s.first, "finish": s.finish, "tokens": s.tokens}
            for s in found.served
        ]
        try:
            write_whole(out, json.dumps({"summary": held, "served": times}) + "\n")
        except SpecError as error:
            raise refused(error) from error


def _check_use(typed: Typed, tiny: bool, drafter: str | None, policy: str, room: tuple[int, int]) -> None:
    """Raises: OptionError for options that would be ignored."""
    if tiny:
        given = ("--checkpoint", "--drafter", "--method", "--drafts", "--choose", "--device")
        typed.unused(given, "--tiny decodes plainly on the CPU, with a model of its own", "omit --tiny")
    if drafter is None:
        typed.unused(["--drafts", "--choose"], "no drafter was given", "give --drafter")
    if policy != "clearing":
        typed.unused(["--capacity", "--wait"], f"--policy is {policy}", "give --policy clearing")
    elif room[0] > room[1]:
        raise OptionError(f"--capacity is {room[0]}, more than --slots, {room[1]}; give fewer, or more slots")


def _policy(name: str, capacity: int, wait: float) -> "Policy":
    from ..engine.scheduler import Clearing, Continuous

    return Continuous() if name == "continuous" else Clearing(capacity, wait)


def _engine(
    checkpoint: Path | None,
    tiny: bool,
    drafter: str | None,
    method: str | None,
    drafts: int,
    choose: bool,
    slots: int,
    cache: int,
    device: str,
) -> "Engine":
    """The engine, with graphs on a GPU. Raises: ParameterError, and what loading raises."""
    if tiny:
        import torch

        from ..bench.models import random_model
        from ..engine.loop import Engine

        return Engine(random_model("tiny", torch.float32, "cpu"), slots=slots, cache=cache)
    if checkpoint is None:
        raise ParameterError("no checkpoint was given; give --checkpoint FOLDER, or --tiny")
    from ..engine.graphs import CUDARecorder
    from ..models.build import Parts

    options: dict[str, Any] = {
        "mode": "fast",
        "device": device,
        "drafts": drafts,
        "choose": choose,
        "slots": slots,
        "cache": cache,
    }
    found: Engine = Parts(checkpoint, drafter, method, **options).load().engine
    if device.startswith("cuda"):
        found.recorder = CUDARecorder()
    return found


def _replay(engine: "Engine", policy: "Policy", rate: float, requests: int, tokens: int, length: int, seed: int) -> "Traffic":
    """Runs a first batch to compile prefill, records steps of every size, then replays. Raises: ParameterError,
    LengthError."""
    import torch

    from ..engine.requests import Settings
    from ..engine.scheduler import Scheduler
    from ..engine.traffic import poisson, replay

    arrivals = poisson(rate, requests, seed)
    vocabulary, generator = engine.model.config.vocabulary, torch.Generator().manual_seed(seed)
    prompts = torch.randint(0, vocabulary, (requests, length), generator=generator).tolist()
    settings = Settings(tokens)
    engine.generate(prompts[: engine.slots], settings)
    engine.prepare(settings)
    scheduler = Scheduler(engine, settings, policy)
    try:
        return replay(scheduler, prompts, arrivals, progress(requests))
    finally:
        scheduler.close()


PERCENTILES = (50, 95, 99)


def summary(found: "Traffic") -> dict[str, float]:
    """Units: seconds, tokens per second."""
    return {
        "requests": len(found.served),
        "failed": sum(one.ending == "failed" for one in found.served),
        "tokens": sum(len(one.tokens) for one in found.served),
        **{f"p{percent} first token": round(found.wait(percent), 4) for percent in PERCENTILES},
        **{f"p{percent} latency": round(found.latency(percent), 4) for percent in PERCENTILES},
        "throughput": round(found.throughput, 2),
    }


def table(held: dict[str, float]) -> str:
    """The figures as readable text."""
    lines = [f"{'requests':<13}{held['requests']} ({held['failed']} failed), {held['tokens']} tokens"]
    lines += [
        f"{name:<13}" + "   ".join(f"p{p} {1e3 * held[f'p{p} {name}']:.0f} ms" for p in PERCENTILES)
        for name in ("first token", "latency")
    ]
    return "\n".join([*lines, f"{'throughput':<13}{held['throughput']:.1f} tokens/s"])


def progress(requests: int) -> Callable[[int], None]:
    """Prints how many requests have ended and about how long the others take, at most every `QUIET` seconds."""
    began = last = time.monotonic()

    def ended(count: int) -> None:
        nonlocal last
        now = time.monotonic()
        if count and count < requests and now - last > QUIET:
            last = now
            left = (now - began) / count * (requests - count)
            typer.echo(f"{count}/{requests} requests have ended, about {left:.0f} s left", err=True)

    return ended
