"""Draft models that are right now and then, and the oracle's view of a model: a law from a history."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from ssmspec_fast.models.model import Model
from ssmspec_ref import model as reference
from ssmspec_ref.accept.processors import softmax

from .models import drawn, to_reference


def perturbed(model: Model, scale: float, seed: int = 0) -> Model:
    """A copy whose projections are moved by so much of their size: a drafter that is often right."""
    rng = np.random.default_rng(seed)

    def moved(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            noise = torch.as_tensor(rng.normal(size=x.shape)).to(x.dtype)
            return x + scale * noise * x.std() if x.dim() == 2 else x
        if isinstance(x, tuple):
            parts = [moved(value) for value in x]
            return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
        if is_dataclass(x) and not isinstance(x, type):
            return replace(x, **{f.name: moved(getattr(x, f.name)) for f in fields(x) if f.name != "config"})
        return x

    return moved(model)


@cache
def float64(name: str, seed: int = 0) -> Model:
    return drawn(name, torch.float64, seed)


@dataclass(frozen=True)
class Histories:
    """A drafter for the oracle: its state is the tokens that it was fed, and every law is computed from the first of them."""

    model: reference.Model

    def law(self, tokens: Sequence[int]) -> np.ndarray:
        logits, _ = reference.scan(reference.new_state(self.model, 1), np.array([tokens], dtype=np.int64), self.model)
        return softmax(logits[0, -1], 1.0)

    def step(self, state: list[tuple[int, ...]], tokens: Sequence[int]) -> tuple[np.ndarray, list[tuple[int, ...]]]:
        after = [(*row, int(token)) for row, token in zip(state, tokens, strict=True)]
        return np.stack([self.law(row) for row in after]), after

    def rows(self, state: list[tuple[int, ...]], index: Sequence[int]) -> list[tuple[int, ...]]:
        return [state[i] for i in index]


@cache
def histories(name: str, seed: int = 0) -> Histories:
    return Histories(to_reference(float64(name, seed)))
