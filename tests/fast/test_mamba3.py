"""Mamba-3 in the engine: twelve windows in a row by every method, and faults in each piece of its state."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from property_tests.drawing.models import Spec, build
from property_tests.sessions.session import Deviation
from ssmspec_fast.adapters.model import model_of
from ssmspec_fast.layers import mamba3
from ssmspec_fast.layers.mamba3 import Mamba3, Mamba3Config, Mamba3Layer, Mamba3Tokens
from ssmspec_fast.models.config import GatedNormConfig
from ssmspec_fast.models.model import Model
from ssmspec_ref.layers.mamba3 import Mamba3Layer as Record

from .drafters import CHAINS
from .folders import VOCABULARY
from .models import Drawn
from .recurrence_runs import leaves_what_plain_decoding_leaves, played, session

PATHS = ("snapshots", "joint", "joint by lag", "activation replay", "replay buffer of two windows", "tree")
FORMS: dict[str, dict[str, Any]] = {
    "one rank": {"decay": "normal"},
    "one rank, normed": {"norm": "first", "g": 2},
    "two ranks": {"widened": True, "decay": "normal"},
}


def options(form: str) -> dict[str, Any]:
    return {"norm": "", **FORMS[form]}


@cache
def drawn(form: str) -> Model:
    """Mamba-3, attention, Mamba-3."""
    spec = Spec(("mamba3", "attention", "mamba3"), 5, VOCABULARY, tuple(sorted(options(form).items())))
    return model_of(build(spec), "cpu", 64)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", CHAINS)
def test_twelve_windows_in_a_row_leave_what_plain_decoding_leaves(method: str, form: str) -> None:
    """In a batch with padding, some drafts accepted in each window: every token and all four pieces, bit for bit."""
    leaves_what_plain_decoding_leaves(drawn(form), method)


@pytest.mark.parametrize("method", PATHS[:5])
@pytest.mark.parametrize("form", FORMS)
def test_every_method_is_within_the_bounds_of_the_reference(form: str, method: str) -> None:
    played(session("mamba3", method, options(form)))


def query_not_turned(self: Mamba3, S: Tensor, token: Mamba3Tokens) -> tuple[Tensor, Tensor]:
    """B is rotated, C is not."""
    after = STEP(self, S, token)[1]
    p, n = token.x.shape[-1], token.order.shape[-1]
    straight = torch.take_along_dim(token.query.flatten(-2), token.order[:, None, None], dim=-1)
    return (after[..., : p * n].unflatten(-1, (p, n))[:, :, None] * straight[..., None, :]).sum(-1), after


def previous_key_not_turned(self: Mamba3, S: Tensor, token: Mamba3Tokens) -> tuple[Tensor, Tensor]:
    y, after = STEP(self, S, token)
    p, n, f = token.x.shape[-1], token.order.shape[-1], token.turned.shape[-1]
    straight = torch.take_along_dim(token.key.flatten(-2), token.order[:, None, None], dim=-1).flatten(-2)
    return y, torch.cat([after[..., : p * n + f], straight, after[..., -p:]], dim=-1)


def angle_begins_anew(self: Mamba3, S: Tensor, token: Mamba3Tokens) -> tuple[Tensor, Tensor]:
    p, n, f = token.x.shape[-1], token.order.shape[-1], token.turned.shape[-1]
    S = S.clone()
    S[..., p * n : p * n + f] = 0.0
    return STEP(self, S, token)


def no_trapezoid(self: Mamba3, S: Tensor, token: Mamba3Tokens) -> tuple[Tensor, Tensor]:
    """Lambda is 1: the previous input is not read."""
    return STEP(self, S, token._replace(before=torch.zeros_like(token.before)))


STEP = Mamba3.step


@pytest.mark.parametrize("form", ["one rank", "two ranks"])
@pytest.mark.parametrize("fault", [query_not_turned, previous_key_not_turned, angle_begins_anew, no_trapezoid])
def test_a_fault_planted_in_a_step_is_caught(fault: Callable[..., Any], form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mamba3, "step", fault)
    with pytest.raises(Deviation):
        played(session("mamba3", "snapshots", options(form)))


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_pairs_exchanged_are_caught(pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mamba3, "paired", lambda x, halves, right=mamba3.paired: right(x, not halves))
    with pytest.raises(Deviation):
        played(session("mamba3", "snapshots", options("two ranks" if pairs == "halves" else "one rank")))


@pytest.mark.parametrize("form", ["one rank", "two ranks"])
@pytest.mark.parametrize("piece", range(4), ids=["matrix", "angle", "key", "value"])
def test_a_piece_that_stays_as_the_draft_left_it_is_caught(piece: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots in which one piece is that after the whole window, whatever was accepted."""
    layer: Any = drawn(form).blocks[0].mixers[0]
    ends = torch.tensor(layer.config.pieces).cumsum(0).tolist()
    cut = slice(([0, *ends])[piece], ends[piece])

    def snapshots(self: Mamba3, S: Tensor, inputs: Any, params: Any, places: Tensor, **given: Any) -> Tensor:
        y = RIGHT(self, S, inputs, params, places, **given)
        for row in places.tolist():
            stored = [place for place in row if place >= 0]
            for place in stored:
                S[place, :, cut] = S[stored[-1], :, cut]
        return y

    monkeypatch.setattr(Mamba3, "snapshots", snapshots)
    with pytest.raises(Deviation):
        played(session("mamba3", "snapshots", options(form)))


RIGHT = Mamba3.snapshots


def test_a_checkpoint_of_mamba_ssm_has_these_names_and_sizes() -> None:
    """`d_in_proj` of the published module: 2 d_inner + 2 n g r + 3 h + f."""
    sizes = Mamba3Config(4, 3, 8, 2, 2, rank=3, halves=True, maps=True, norm=GatedNormConfig(4, 1e-5, True))
    layer = Mamba3Layer.stored(Drawn(torch.float32, 0), "mixer", 7, sizes)
    assert layer.in_proj.weight.shape == (2 * 12 + 2 * 8 * 2 * 3 + 3 * 4 + 2, 7)
    named = zip(layer.params._fields, layer.params, strict=True)
    assert {name: tuple(x.shape) for name, x in named if torch.is_tensor(x)} == {
        "B_norm": (8,), "C_norm": (8,), "B_bias": (4, 3, 8), "C_bias": (4, 3, 8), "dt_bias": (4,), "D": (4,),
        "up": (4, 3, 3), "gate": (4, 3, 3), "down": (4, 3, 3),
    }  # fmt: skip
    assert layer.out_proj.weight.shape == (7, 12)
    assert sizes.state_shape == (4, 3 * 8 + 2 + 3 * 8 + 3)
    assert Record.__name__ == "Mamba3Layer"
