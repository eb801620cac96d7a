"""Runs of the engine with the repository's checkpoints: nothing is simulated, and nothing is compared with a paper's figure.

A pair writes the outputs of the prompts, one sequence at a time, with graphs; the whole run is timed by the host's
clock, prompts included, in microseconds per token. `tau` is that of the run.
"""

import functools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from perf_gates.gpu.clock import is_compiling, known_median, repeated

from ..kernels.steps import Timing
from .engines import engine

TARGET, DRAFTER, WEAK, OTHER = "mamba2", "mamba2-drafter", "mamba2-drafter-05", "bpe-drafter"
TEMPERATURES = (0.2, 0.6, 1.0)
PROMPTS, TOKENS, SEED = 4, 64, 0
LEAST, MOST, SECONDS, ENOUGH = 3, 201, 20.0, 0.005
"""Least and most runs, the time after which no further one starts, and the relative error at which a median is known
well enough."""


@dataclass(frozen=True)
class TrainedTiming(Timing):
    """Units: microseconds per token; `tau` in tokens per call of the target."""

    tau: float = 0.0


def runs() -> dict[str, dict[str, Any]]:
    """How each pair drafts, by the name that gates read."""
    found: dict[str, dict[str, Any]] = {"plain": {}}
    for temperature in TEMPERATURES:
        sampled = {"drafter": DRAFTER, "temperature": temperature}
        found[f"chain, temperature {temperature}"] = sampled | {"drafts": 4}
        found[f"tree, temperature {temperature}"] = sampled | {"tree": "a"}
    found |= {
        "same tokens": {"drafter": DRAFTER, "drafts": 3},
        "fixed tree": {"drafter": WEAK, "tree": "3,2,1"},
        "bandit": {"drafter": WEAK, "tree": "1,1/2,1/3,2,1"},
        "by text": {"drafter": OTHER, "drafts": 3},
    }
    return found


def cases() -> Iterator[tuple[str]]:
    yield from ((name,) for name in runs())


@torch.no_grad()
def timings(name: str, device: str = "cuda", tokens: int = TOKENS) -> list[Timing]:
    """One pair's runs. For compilation it writes a few tokens only."""
    folder, given = Path(engine("api", "__file__")).parent / "checkpoints", dict(runs()[name])
    text = (folder / "prompts.jsonl").read_text().splitlines()[:PROMPTS]
    if "drafter" in given:
        given["drafter"] = folder / given["drafter"]
    if "temperature" in given:
        given |= {"sampling": engine("accept.processors", "Sampling")(given.pop("temperature")), "seed": SEED}
    encode = engine("models.tokenizer", "Tokenizer")(folder / TARGET).encode
    prompts, short = [encode(json.loads(line)["prompt"]) for line in text], is_compiling()
    recorder = engine("engine.graphs", "CUDARecorder")() if device == "cuda" and not short else None
    made = functools.partial(engine("engine.emitted_windows", "StreamingEngine"), graphs=recorder)
    room = {"slots": 1, "cache": max(map(len, prompts)) + tokens, "mode": "fast", "device": device}
    engine_ = engine("models.build", "Parts")(folder / TARGET, engine=made, **room, **given).load().engine
    settings = engine("engine.requests", "Settings")(8 if short else tokens)
    results = list(engine_.generate(prompts, settings))
    if short:
        return []

    def us_a_token() -> float:
        began = time.perf_counter()
        results[:] = engine_.generate(prompts, settings)
        return 1e6 * (time.perf_counter() - began) / sum(len(r.tokens) for r in results)

    us = known_median(repeated(us_a_token, LEAST, MOST, ENOUGH, SECONDS))
    windows = [advanced for r in results for advanced in r.statistics.advanced]
    return [TrainedTiming("checkpoints", name, 1, us, 0, sum(windows) / len(windows))]
