"""Runs of the engine with the repository's checkpoints: nothing is simulated, and nothing is set beside a paper's figure.

A pair writes the outputs of the prompts, one sequence at a time, over graphs; what is timed is the whole of it by the host's
clock, prompts included, in microseconds a token. `tau` is the run's own.
"""

import functools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from perf_gates.clock import is_compiling, known_median, repeated

from .engines import engine
from .steps import Timing

TARGET, DRAFTER, WEAK, OTHER = "mamba2", "mamba2-drafter", "mamba2-drafter-05", "bpe-drafter"
TEMPERATURES = (0.2, 0.6, 1.0)
PROMPTS, TOKENS, SEED = 4, 64, 0
LEAST, MOST, SECONDS, ENOUGH = 3, 201, 20.0, 0.005
"""Runs at least and at most, the time behind which no further one begins, and the relative error of a median that is known
well enough."""


@dataclass(frozen=True)
class TrainedTiming(Timing):
    """Units: microseconds a token; `tau` tokens a call of the target."""

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
    """One pair's runs. While kernels are compiled it writes a few tokens."""
    folder, given = Path(engine("checkpoint", "__file__")).parent / "checkpoints", dict(runs()[name])
    text = (folder / "prompts.jsonl").read_text().splitlines()[:PROMPTS]
    if "drafter" in given:
        given["drafter"] = folder / given["drafter"]
    if "temperature" in given:
        given |= {"sampling": engine("accept.processors", "Sampling")(given.pop("temperature")), "seed": SEED}
    encode = engine("tokenizer", "Tokenizer")(folder / TARGET).encode
    prompts, short = [encode(json.loads(line)["prompt"]) for line in text], is_compiling()
    recorder = engine("graphs", "CUDARecorder")() if device == "cuda" and not short else None
    made = functools.partial(engine("watch", "Watched"), graphs=recorder)
    room = {"slots": 1, "cache": max(map(len, prompts)) + tokens, "mode": "fast", "device": device}
    engine_ = engine("parts", "Parts")(folder / TARGET, engine=made, **room, **given).load().engine
    settings = engine("requests", "Settings")(8 if short else tokens)
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
