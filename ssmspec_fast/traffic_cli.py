"""`ssmspec traffic`: requests that arrive by chance, served as a stream; latency and throughput."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssmspec_ref.errors import ParameterError, SpecError

from .cli import write_whole
from .refusal import refused

if TYPE_CHECKING:
    from .engine import Engine
    from .scheduler import Policy
    from .traffic import Traffic

app = typer.Typer(pretty_exceptions_enable=False, help="Serve requests that arrive by chance; latency and throughput.")


@app.callback(invoke_without_command=True)
def traffic(
    checkpoint: Annotated[Path | None, typer.Option(help="A folder in Hugging Face format.")] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="A small model with random weights, on the CPU.")] = False,
    drafter: Annotated[str | None, typer.Option(help="A checkpoint's folder, ngram or lookup; none: plain decoding.")] = None,
    method: Annotated[str | None, typer.Option(help="How drafts are verified and undone: docs/generate.md.")] = None,
    drafts: Annotated[int, typer.Option(help="Draft tokens in a window.")] = 4,
    rate: Annotated[float, typer.Option(help="Requests a second.")] = 4.0,
    requests: Annotated[int, typer.Option(help="How many come.")] = 64,
    policy: Annotated[str, typer.Option(help="continuous, or clearing: the queue in batches.")] = "continuous",
    capacity: Annotated[int, typer.Option(help="Clearing: requests that clear the queue.")] = 8,
    wait: Annotated[float, typer.Option(help="Clearing: seconds after which the oldest clears it.")] = 0.1,
    tokens: Annotated[int, typer.Option(help="Tokens that each request gets.")] = 64,
    length: Annotated[int, typer.Option(help="Tokens of each prompt, drawn by the seed.")] = 32,
    slots: Annotated[int, typer.Option(help="Requests at once.")] = 8,
    seed: Annotated[int, typer.Option(help="Of arrivals and prompts.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, ..")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Write times and tokens as JSON.")] = None,
) -> None:
    """Replay Poisson arrivals. One line per figure goes to standard output."""
    try:
        if tokens < 1 or length < 1:
            raise ParameterError(f"tokens and length came as {tokens} and {length}; give 1 or more")
        engine = _engine(checkpoint, tiny, drafter, method, drafts, slots, length + tokens, device)
        if rate > 0:
            typer.echo(f"{requests} requests at {rate:g} a second take {requests / rate:.0f} s or more", err=True)
        found = _replay(engine, _policy(policy, capacity, wait), rate, requests, tokens, length, seed)
    except (SpecError, ModuleNotFoundError) as error:
        raise refused(error) from error
    held = summary(found)
    for name, value in held.items():
        typer.echo(f"{name}: {value}")
    if out is not None:
        times = [{"arrival": s.arrival, "start": s.start, "finish": s.finish, "tokens": s.tokens} for s in found.served]
        write_whole(out, json.dumps({"summary": held, "served": times}) + "\n")


def _policy(name: str, capacity: int, wait: float) -> "Policy":
    """Raises: ParameterError."""
    from .scheduler import Clearing, Continuous

    if name not in ("continuous", "clearing"):
        raise ParameterError(f"policy came as {name!r}; give continuous or clearing")
    return Continuous() if name == "continuous" else Clearing(capacity, wait)


def _engine(
    checkpoint: Path | None,
    tiny: bool,
    drafter: str | None,
    method: str | None,
    drafts: int,
    slots: int,
    cache: int,
    device: str,
) -> "Engine":
    """Over graphs on a GPU. Raises: ParameterError, and what loading raises."""
    if tiny:
        beside = {
            "checkpoint": checkpoint,
            "drafter": drafter,
            "method": method,
            "device": None if device == "cpu" else device,
        }
        given = [f"--{name}" for name, value in beside.items() if value is not None]
        if given:
            raise ParameterError(f"--tiny decodes plainly, on the CPU, but {', '.join(given)} came beside it; leave one out")
        import torch

        from .bench.models import random_model
        from .engine import Engine

        return Engine(random_model("tiny", torch.float32, "cpu"), slots=slots, cache=cache)
    if checkpoint is None:
        raise ParameterError("no checkpoint was given; give --checkpoint FOLDER, or --tiny")
    from .graphs import CUDARecorder
    from .parts import Parts

    options: dict[str, Any] = {"mode": "fast", "device": device, "drafts": drafts, "slots": slots, "cache": cache}
    found: Engine = Parts(checkpoint, drafter, method, **options).load().engine
    if device.startswith("cuda"):
        found.recorder = CUDARecorder()
    return found


def _replay(engine: "Engine", policy: "Policy", rate: float, requests: int, tokens: int, length: int, seed: int) -> "Traffic":
    """Prompts are compiled by a first batch, steps recorded for every size. Raises: ParameterError, LengthError."""
    import torch

    from .requests import Settings
    from .scheduler import Scheduler
    from .traffic import poisson, replay

    arrivals = poisson(rate, requests, seed)
    vocabulary, generator = engine.model.config.vocabulary, torch.Generator().manual_seed(seed)
    prompts = torch.randint(0, vocabulary, (requests, length), generator=generator).tolist()
    settings = Settings(tokens)
    engine.generate(prompts[: engine.slots], settings)
    engine.prepare(settings)
    scheduler = Scheduler(engine, settings, policy)
    try:
        return replay(scheduler, prompts, arrivals)
    finally:
        scheduler.close()


def summary(found: "Traffic") -> dict[str, float]:
    """Units: seconds, tokens per second."""
    return {
        "requests": len(found.served),
        "failed": sum(one.ending == "failed" for one in found.served),
        "p50 latency": round(found.latency(50), 4),
        "p95 latency": round(found.latency(95), 4),
        "throughput": round(found.throughput, 2),
    }
