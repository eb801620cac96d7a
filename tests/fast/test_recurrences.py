"""Kimi Delta Attention and Mamba-3 in the engine: twelve windows in a row by every method, and planted faults."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from property_tests.drawing.models import Spec, build
from property_tests.sessions.session import Deviation
from ssmspec_fast.adapters import methods
from ssmspec_fast.adapters.model import model_of
from ssmspec_fast.layers import kda, mamba3
from ssmspec_fast.layers.mamba3 import Mamba3, Mamba3Tokens
from ssmspec_fast.models.model import Model
from ssmspec_fast.operations import KDAParams
from ssmspec_fast.operations.arithmetic import Arithmetic
from ssmspec_fast.operations.torch_recurrences import KDA

from .drafters import CHAINS
from .folders import VOCABULARY
from .models import drawn
from .recurrence_runs import leaves_what_plain_decoding_leaves, played, session

FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "kda": {
        "softplus": {},
        "low rank": {"rank": 2, "decay": "normal"},
        "bound of 5": {"bound": -5.0},
        "bound of 1, steep": {"bound": -1.0, "rank": 2, "decay": "hard"},
    },
    "mamba3": {
        "one rank": {"norm": "", "decay": "normal"},
        "one rank, normed": {"norm": "first", "g": 2},
        "two ranks": {"norm": "", "widened": True, "decay": "normal"},
    },
}
PATHS = ("snapshots", "joint", "joint by lag", "activation replay", "replay buffer of two windows")


def bounded(bound: float) -> Model:
    """Kimi Linear with a lower bound on all its log decays."""

    def changed(block: Any) -> Any:
        (mixer,) = block.mixers
        if not isinstance(mixer, kda.KDA):
            return block
        params = mixer.params._replace(lower_bound=bound)
        return replace(block, mixers=(replace(mixer, params=params, config=replace(mixer.config, lower_bound=bound)),))

    model = drawn("kimi_linear")
    return replace(model, blocks=tuple(map(changed, model.blocks)))


@cache
def between_mamba3(form: str) -> Model:
    """Mamba-3, attention, Mamba-3."""
    spec = Spec(("mamba3", "attention", "mamba3"), 5, VOCABULARY, tuple(sorted(FORMS["mamba3"][form].items())))
    return model_of(build(spec), "cpu", 64)


MODELS: dict[str, Callable[[], Model]] = {
    "kimi_linear": partial(drawn, "kimi_linear"),
    "kimi_linear, bounded": partial(bounded, -5.0),
    **{f"mamba3, {form}": partial(between_mamba3, form) for form in FORMS["mamba3"]},
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", CHAINS)
def test_twelve_windows_in_a_row_leave_what_plain_decoding_leaves(method: str, name: str) -> None:
    """In a batch with padding, some drafts accepted in each: every token and all pieces of a state, bit for bit."""
    leaves_what_plain_decoding_leaves(MODELS[name](), method)


@pytest.mark.parametrize("method", PATHS)
@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind, forms in FORMS.items() for form in forms])
def test_every_method_is_within_the_bounds_of_the_reference(kind: str, form: str, method: str) -> None:
    played(session(kind, method, FORMS[kind][form]))


def test_every_method_of_the_adapters_is_played() -> None:
    assert set(PATHS) <= set(methods.CHAINS)


# --- faults in the gate of Kimi Delta Attention ------------------------------------------------------------------------

GATE, STEP, SNAPSHOTS, PAIRED = KDA.log_decay, Mamba3.step, Mamba3.snapshots, mamba3.paired


def clamped_softplus(self: KDA, g: Tensor, params: KDAParams) -> Tensor:
    """The softplus gate, cut at the bound. lightseekorg/tokenspeed#847."""
    found = GATE(self, g, params._replace(lower_bound=None))
    return found if params.lower_bound is None else found.clamp_min(params.lower_bound)


def rate_after_the_sigmoid(self: KDA, g: Tensor, params: KDAParams) -> Tensor:
    rate, bound = -params.A[:, None], params.lower_bound or 0.0
    return GATE(self, g, params) if params.lower_bound is None else bound * rate * torch.sigmoid(g + params.dt_bias)


def one_decay_a_head(self: KDA, g: Tensor, params: KDAParams) -> Tensor:
    return GATE(self, g, params).mean(-1, keepdim=True).expand(g.shape)


def bias_of_the_first_head(self: KDA, g: Tensor, params: KDAParams) -> Tensor:
    return GATE(self, g, params._replace(dt_bias=params.dt_bias[:1]))


def rate_by_channel(self: KDA, g: Tensor, params: KDAParams) -> Tensor:
    """A of the heads, read along the channels."""
    places = torch.arange(g.shape[-1]) % len(params.A)
    made: Tensor = GATE(self, g.transpose(-1, -2), params._replace(A=params.A[places], dt_bias=params.dt_bias.T))
    return made.transpose(-1, -2)


# --- faults in a step of Mamba-3, and in the pieces of its state --------------------------------------------------------


def straight(part: Tensor, token: Mamba3Tokens) -> Tensor:
    """B or C without its rotation."""
    return torch.take_along_dim(part.flatten(-2), token.order[:, None, None], dim=-1)


def sizes(token: Mamba3Tokens) -> tuple[int, int, int]:
    return token.x.shape[-1], token.order.shape[-1], token.turned.shape[-1]


def query_not_turned(self: Mamba3, S: Tensor, token: Mamba3Tokens) -> tuple[Tensor, Tensor]:
    """B is rotated, C is not."""
    after, (p, n, _) = STEP(self, S, token)[1], sizes(token)
    state = after[..., : p * n].unflatten(-1, (p, n))[:, :, None]
    return (state * straight(token.query, token)[..., None, :]).sum(-1), after


def previous_key_not_turned(self: Mamba3, S: Tensor, token: Mamba3Tokens) -> tuple[Tensor, Tensor]:
    (y, after), (p, n, f) = STEP(self, S, token), sizes(token)
    key = straight(token.key, token).flatten(-2)
    return y, torch.cat([after[..., : p * n + f], key, after[..., -p:]], dim=-1)


def angle_begins_anew(self: Mamba3, S: Tensor, token: Mamba3Tokens) -> tuple[Tensor, Tensor]:
    S, (p, n, f) = S.clone(), sizes(token)
    S[..., p * n : p * n + f] = 0.0
    return STEP(self, S, token)


def no_trapezoid(self: Mamba3, S: Tensor, token: Mamba3Tokens) -> tuple[Tensor, Tensor]:
    """Lambda is 1: the previous input is not read."""
    return STEP(self, S, token._replace(before=torch.zeros_like(token.before)))


def staying(piece: int, form: str) -> Any:
    """Snapshots in which one piece is that after the whole window, whatever was accepted."""
    layer: Any = between_mamba3(form).blocks[0].mixers[0]
    ends = torch.tensor(layer.config.pieces).cumsum(0).tolist()
    cut = slice(([0, *ends])[piece], ends[piece])

    def snapshots(self: Mamba3, S: Tensor, inputs: Any, params: Any, places: Tensor, **given: Any) -> Tensor:
        y = SNAPSHOTS(self, S, inputs, params, places, **given)
        for row in places.tolist():
            stored = [place for place in row if place >= 0]
            for place in stored:
                S[place, :, cut] = S[stored[-1], :, cut]
        return y

    return snapshots


RANKS = ("one rank", "two ranks")
FAULTS: dict[str, tuple[str, tuple[str, ...], Any, str, Any]] = {
    **{gate.__name__: ("kda", ("bound of 5", "bound of 1, steep"), KDA, "log_decay", gate)
       for gate in (clamped_softplus, rate_after_the_sigmoid)},
    **{gate.__name__: ("kda", ("softplus", "bound of 5"), KDA, "log_decay", gate)
       for gate in (one_decay_a_head, bias_of_the_first_head, rate_by_channel)},
    "silu for the sigmoid of the output gate": ("kda", ("softplus",), kda.KDA, "activation", "silu"),
    **{step.__name__: ("mamba3", RANKS, Mamba3, "step", step)
       for step in (query_not_turned, previous_key_not_turned, angle_begins_anew, no_trapezoid)},
    "pairs exchanged": ("mamba3", RANKS, mamba3, "paired", lambda x, halves: PAIRED(x, not halves)),
    **{f"{piece} that stays as the draft left it, {form}": ("mamba3", (form,), Mamba3, "snapshots", partial(staying, n, form))
       for n, piece in enumerate(("matrix", "angle", "key", "value")) for form in RANKS},
}  # fmt: skip


@pytest.mark.parametrize(("fault", "form"), [(name, form) for name, row in FAULTS.items() for form in row[1]])
def test_a_planted_fault_is_caught(fault: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, _, owner, name, wrong = FAULTS[fault]
    monkeypatch.setattr(owner, name, wrong() if isinstance(wrong, partial) else wrong)
    with pytest.raises(Deviation):
        played(session(kind, "snapshots", FORMS[kind][form]))


def test_the_clamp_is_exact_where_no_decay_reaches_the_bound() -> None:
    """Why the fault lives: far from the bound both forms of a gate agree in sign and order, and a model only gets worse."""
    rule, params = KDA(Arithmetic(False)), KDAParams(-torch.ones(1), torch.zeros(1, 3), lower_bound=-5.0)
    g = torch.tensor([[[[-20.0, 0.0, 20.0]]]])
    right, clamped = rule.log_decay(g, params), clamped_softplus(rule, g, params)
    assert right.flatten().tolist() == pytest.approx([0.0, -2.5, -5.0], abs=1e-6)
    assert clamped.flatten().tolist() == pytest.approx([0.0, -0.6931, -5.0], abs=1e-4)
