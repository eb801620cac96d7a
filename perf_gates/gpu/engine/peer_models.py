"""A plain step of transformers' own model with our weights: `transformers, window of 1`.

Both models hold the same tensors, drawn under the names of a checkpoint. Before timing, the first step from an empty state
must give our logits, up to the rounding of bf16 in both. It runs as transformers runs it, launch by launch; tokenizer,
sampler and generation loop are left out on both sides.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from . import engines
from .named import Step

APART = 0.1
"""The largest difference of logits, relative to the largest: theirs holds all parameters in bf16, and both round to bf16
several times in each of 64 layers, 0.2 % at a time; a wrong layer changes logits by about their own size."""


class Kept(import_module("ssmspec_fast.bench.models").Random):  # type: ignore[misc]
    """Draws as `Random` does, and keeps the tensors under the names of the checkpoint."""

    def __init__(self, dtype: torch.dtype, device: str) -> None:
        super().__init__(dtype, device)
        self.kept: dict[str, Tensor] = {}

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.kept[name] = super().read(name, shape, dtype)
        return self.kept[name]


def stepping(step: Step, device: str) -> Callable[[], object]:
    """A step of their model after another one. Raises: RuntimeError for logits that are not ours."""
    family, config = engines.engine("bench.models", "family_of")(step.model)
    source = Kept(torch.bfloat16 if device == "cuda" else torch.float32, device)
    ours, model = family.assemble(config, source), module(step.model, source.kept, source.dtype, device)
    token = torch.ones(step.batch, 1, dtype=torch.long, device=device)
    first = model(input_ids=token, use_cache=True)
    same(first.logits[:, -1], first_logits(step, ours, token[:, 0], device))

    def run() -> object:
        return model(input_ids=token, cache_params=first.cache_params, use_cache=True).logits

    return run


def module(name: str, tensors: dict[str, Tensor], dtype: torch.dtype, device: str) -> Any:
    """Their model with all the given weights, in one type; the head is the embedding if there is no separate one.

    Raises: RuntimeError for a tensor too many or too few.
    """
    transformers = import_module("transformers")
    fields, _ = engines.engine("bench.models", "DIMS")[name]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**fields))
    given = {key: x.to(dtype) for key, x in tensors.items()}
    missing, unknown = model.load_state_dict(given, strict=False, assign=True)
    model.tie_weights()
    if unknown or {*missing} - {"lm_head.weight"}:
        raise RuntimeError(f"transformers lacks {unknown} and needs {missing}")
    return model.to(device).eval()


def first_logits(step: Step, model: Any, token: Tensor, device: str) -> Tensor:
    """The logits of our model, after one token from an empty state."""
    subject = engines.engine("bench.subjects", "Subject")(step.model, "plain", 1, step.batch)
    made = engines.engine("bench.subjects", "engine_of")(subject, model, engines.operations_of(step, device), None)
    slots = torch.arange(step.batch, device=device)
    window = import_module("ssmspec_fast.engine.window").Window(token[:, None], slots)
    logits: Tensor = made.target.verify(made.target.feed(window, made.sequences, fits=True))
    return logits[:, -1]


def same(theirs: Tensor, ours: Tensor) -> None:
    """Raises: RuntimeError for logits that differ by more than the rounding of bf16 explains."""
    apart = float((theirs.double() - ours.double()).abs().max() / ours.double().abs().max())
    if not apart <= APART:
        raise RuntimeError(f"transformers' logits differ from ours by {apart:.2g} of the largest; nothing is timed")
