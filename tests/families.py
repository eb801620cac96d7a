"""The inputs on which the reference is tested: three families, each drawn from a seed and sizes.

gentle  decays of 0.98 to 1 and a state 30 times the inputs, so that whatever is carried along is seen
mamba   the published initialisations: A in -16 .. -1 (Mamba-1: -1 .. -n), dt_bias from dt log-uniform in 0.001 .. 0.1
hard    log decays from -0.0001 down to -200, neighbours of every size, so that a wrong order of mask and exp gives inf or NaN

All three are well-conditioned: log decays are at most 0, keys have norm 1 or less, beta lies in 0 .. 1 (`beta_max` for
more), so that no perturbation grows. Two derivations in float64 then differ by at most about (t + n) u sum|terms|,
u = 2^-53; with t + n below 100 and sum|terms| below 100 max|ref| that is 1.1e-12, of which the signs of the roundings leave
a tenth. Tests compare within TOLERANCE of max|ref|.
"""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from ssmspec_ref.conv import ConvParams
from ssmspec_ref.delta import DeltaParams, DeltaWindow
from ssmspec_ref.functions import sigmoid, softplus
from ssmspec_ref.layers import mixer as layers
from ssmspec_ref.layers.mamba3 import Mamba3Mixer
from ssmspec_ref.layers.shortconv import NO_CHANNELS, ShortConvGates, ShortConvMixer
from ssmspec_ref.mamba3 import Mamba3Params, Mamba3Window, width
from ssmspec_ref.selective import SelectiveParams, SelectiveWindow
from ssmspec_ref.shapes import Array, ChannelState, DeltaState, State
from ssmspec_ref.shortconv import ShortConvParams, ShortConvWindow
from ssmspec_ref.ssd import SSDParams, SSDWindow

TOLERANCE = 1e-12  # of max|ref|, see above

Family: TypeAlias = Literal["gentle", "mamba", "hard"]
FAMILIES: tuple[Family, ...] = ("gentle", "mamba", "hard")
Kind: TypeAlias = Literal["ssd", "ssd_grouped", "delta", "delta_channel", "selective", "shortconv", "mamba3"]
CONVOLVED: tuple[Kind, ...] = ("ssd", "ssd_grouped", "delta", "delta_channel", "selective")
"""Layers with a convolution in front of the recurrence."""
KINDS: tuple[Kind, ...] = (*CONVOLVED, "shortconv", "mamba3")
each_kind = pytest.mark.parametrize("kind", KINDS)
each_convolved = pytest.mark.parametrize("kind", CONVOLVED)
each_family = pytest.mark.parametrize("family", FAMILIES)


@dataclass(frozen=True)
class Sizes:
    """The letters of `shapes.py`; r is the rank of dt in Mamba-1 and of the inputs in Mamba-3, whose keys have 2 n channels,
    of which min(k, n) pairs turn. The defaults have 1 < g < h and k != v."""

    b: int = 2
    t: int = 7
    h: int = 6
    g: int = 3
    p: int = 5
    n: int = 4
    k: int = 5
    v: int = 3
    d: int = 7
    w: int = 4
    r: int = 2


@st.composite
def drawn_sizes(draw: st.DrawFn, tokens: int = 13, rows: int = 3) -> Sizes:
    """Small sizes of every parity; the groups divide the heads, and half of the time 1 < g < h."""
    groups, each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    small = st.integers(1, 5)
    return Sizes(
        b=draw(st.integers(1, rows)),
        t=draw(st.integers(1, tokens)),
        h=groups * each,
        g=groups,
        p=draw(small),
        n=draw(small),
        k=draw(small),
        v=draw(small),
        d=draw(small),
        w=draw(st.integers(2, 5)),
        r=draw(st.integers(1, 3)),
    )


seeds = st.integers(0, 2**32 - 1)


def examples(count: int) -> settings:
    """So many draws of a test, the same in every run and without a limit of time."""
    return settings(deadline=None, derandomize=True, max_examples=count)


def deviation(got: Any, ref: Any) -> float:
    """max|got - ref| / max|ref|, the largest over the arrays of two records; NaN where anything is NaN or inf."""
    if is_dataclass(ref) and not isinstance(ref, type):
        parts = [(getattr(got, f.name), getattr(ref, f.name)) for f in fields(ref)]
        inner = [deviation(g, r) for g, r in parts if isinstance(r, np.ndarray) or is_dataclass(r)]
        return float(np.max(inner)) if inner else 0.0
    assert got.shape == ref.shape, f"shapes {got.shape} and {ref.shape}"
    if ref.size == 0:
        return 0.0
    if not (np.isfinite(got).all() and np.isfinite(ref).all()):
        return float("nan")
    largest = float(np.max(np.abs(ref)))
    return float(np.max(np.abs(got - ref))) / (largest if largest > 0 else 1.0)


def same_bits(got: Any, ref: Any) -> bool:
    """Whether two arrays, or two records, hold the same bits; NaN equals NaN, 0 does not equal -0."""
    if is_dataclass(ref) and not isinstance(ref, type):
        return all(same_bits(getattr(got, f.name), getattr(ref, f.name)) for f in fields(ref))
    if not isinstance(ref, np.ndarray):
        return bool(got == ref)
    return got.shape == ref.shape and got.dtype == ref.dtype and got.tobytes() == ref.tobytes()


# ---------------------------------------------------------------------------------------------------------------- draws


def inverse_softplus(dt: Array) -> Array:
    """log(exp(dt) - 1)."""
    return dt + np.log(-np.expm1(-dt))


def dt_bias(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """The published initialisation: dt log-uniform in 0.001 .. 0.1. Source: arXiv:2312.00752, section 3.6."""
    return inverse_softplus(np.exp(rng.uniform(np.log(1e-3), np.log(0.1), shape)))


def step_sizes(rng: np.random.Generator, family: Family, bias: Array, shape: tuple[int, ...]) -> Array:
    """dt after bias and softplus."""
    match family:
        case "gentle":
            return rng.uniform(0.01, 0.1, shape)
        case "mamba":
            return softplus(rng.normal(size=shape) + bias)
        case "hard":
            dt = 10 ** rng.uniform(-4, np.log10(12.5), shape)
            return np.where(rng.uniform(size=shape) < 0.2, 12.5, dt)


def decay_rates(rng: np.random.Generator, family: Family, shape: tuple[int, ...]) -> Array:
    """A, so that dt A spans the family's log decays."""
    match family:
        case "gentle":
            return -rng.uniform(0.01, 0.2, shape)
        case "mamba":
            return -rng.uniform(1, 16, shape)
        case "hard":
            return -np.where(rng.uniform(size=shape) < 0.5, 16.0, rng.uniform(1, 16, shape))


def log_decays(rng: np.random.Generator, family: Family, shape: tuple[int, ...]) -> Array:
    """g of the delta rule, one per head or per head and key channel; shape is (b, t, h) or (b, t, h, k)."""
    match family:
        case "gentle":
            return -rng.uniform(1e-4, 2e-2, shape)
        case "mamba":  # g = A softplus(a + dt_bias), A per head
            A = -rng.uniform(0.5, 16, shape[2:3])
            rates = A if len(shape) == 3 else A[:, None]
            return rates * softplus(rng.normal(size=shape) + dt_bias(rng, shape[2:]))
        case "hard":
            g = -(10 ** rng.uniform(-4, np.log10(200), shape))
            return np.where(rng.uniform(size=shape) < 0.2, -200.0, g)


def first_state(rng: np.random.Generator, family: Family, shape: tuple[int, ...]) -> Array:
    return rng.normal(size=shape) * (30.0 if family == "gentle" else 1.0)


def unit(x: Array) -> Array:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


# ---------------------------------------------------------------------------------------------------------------- cases


def conv_params(
    rng: np.random.Generator, channels: int, width: int, bias: bool = True, activation: bool = True
) -> ConvParams:
    """Taps and bias of the published initialisation, uniform in +- width^-1/2."""
    weight = rng.uniform(-1, 1, (channels, width)) * width**-0.5
    return ConvParams(weight, rng.uniform(-1, 1, channels) if bias else None, activation)


def conv_case(
    seed: int, sizes: Sizes, bias: bool = True, activation: bool = True, channels: int | None = None
) -> tuple[Array, Array, ConvParams]:
    """A window of the convolution, inputs, parameters."""
    rng, s = np.random.default_rng(seed), sizes
    c = s.d if channels is None else channels
    return rng.normal(size=(s.b, c, s.w)), rng.normal(size=(s.b, s.t, c)), conv_params(rng, c, s.w, bias, activation)


def ssd_params(
    rng: np.random.Generator,
    sizes: Sizes,
    family: Family,
    D: Literal["head", "channel"] | None = "head",
    bias: bool = True,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
) -> SSDParams:
    s = sizes
    skips = {"head": (s.h,), "channel": (s.h, s.p)}
    return SSDParams(
        A=decay_rates(rng, family, (s.h,)),
        D=rng.normal(size=skips[D]) if D else None,
        dt_bias=dt_bias(rng, (s.h,)) if bias else None,
        dt_softplus=dt_softplus,
        dt_limit=dt_limit,
    )


def raw_steps(
    rng: np.random.Generator, family: Family, bias: Array | None, dt_softplus: bool, shape: tuple[int, ...]
) -> Array:
    """dt as the recurrence receives it, before bias and softplus."""
    offset = np.zeros(shape[-1]) if bias is None else bias
    dt = step_sizes(rng, family, offset, shape)
    return (inverse_softplus(dt) if dt_softplus else dt) - offset


def ssd_case(seed: int, sizes: Sizes, family: Family, z: bool = True, **options: Any) -> tuple[State, SSDWindow, SSDParams]:
    """A state, a window and parameters of SSD; options are those of `ssd_params`."""
    rng, s = np.random.default_rng(seed), sizes
    params = ssd_params(rng, s, family, **options)
    window = SSDWindow(
        x=rng.normal(size=(s.b, s.t, s.h, s.p)),
        dt=raw_steps(rng, family, params.dt_bias, params.dt_softplus, (s.b, s.t, s.h)),
        B=rng.normal(size=(s.b, s.t, s.g, s.n)),
        C=rng.normal(size=(s.b, s.t, s.g, s.n)),
        z=rng.normal(size=(s.b, s.t, s.h, s.p)) if z else None,
    )
    return first_state(rng, family, (s.b, s.h, s.p, s.n)), window, params


def delta_case(
    seed: int,
    sizes: Sizes,
    family: Family,
    channel_gate: bool = False,
    beta_max: float = 1.0,
    l2_norm: bool = True,
    scale: float | None = None,
) -> tuple[DeltaState, DeltaWindow, DeltaParams]:
    """A state, a window and parameters of the gated delta rule; without the norm, keys are drawn with norm 1."""
    rng, s = np.random.default_rng(seed), sizes
    q, k = rng.normal(size=(2, s.b, s.t, s.g, s.k))
    window = DeltaWindow(
        q=q,
        k=k if l2_norm else unit(k),
        v=rng.normal(size=(s.b, s.t, s.h, s.v)),
        g=log_decays(rng, family, (s.b, s.t, s.h, s.k) if channel_gate else (s.b, s.t, s.h)),
        beta=beta_max * sigmoid(rng.normal(size=(s.b, s.t, s.h))),
    )
    return first_state(rng, family, (s.b, s.h, s.k, s.v)), window, DeltaParams(scale=scale, l2_norm=l2_norm)


def selective_params(
    rng: np.random.Generator, sizes: Sizes, family: Family, D: bool = True, bias: bool = True, dt_softplus: bool = True
) -> SelectiveParams:
    """Mamba-1 starts from A = -(1 .. n) in every channel; a little noise makes the channels differ."""
    d, n = sizes.d, sizes.n
    A = decay_rates(rng, family, (d, n))
    if family == "mamba":
        A = -np.arange(1.0, n + 1) * rng.uniform(0.9, 1.1, (d, n))
    return SelectiveParams(A, rng.normal(size=d) if D else None, dt_bias(rng, (d,)) if bias else None, dt_softplus)


def selective_case(
    seed: int, sizes: Sizes, family: Family, z: bool = True, **options: Any
) -> tuple[ChannelState, SelectiveWindow, SelectiveParams]:
    """A state, a window and parameters of the selective scan; options are those of `selective_params`."""
    rng, s = np.random.default_rng(seed), sizes
    params = selective_params(rng, s, family, **options)
    window = SelectiveWindow(
        x=rng.normal(size=(s.b, s.t, s.d)),
        dt=raw_steps(rng, family, params.dt_bias, params.dt_softplus, (s.b, s.t, s.d)),
        B=rng.normal(size=(s.b, s.t, s.n)),
        C=rng.normal(size=(s.b, s.t, s.n)),
        z=rng.normal(size=(s.b, s.t, s.d)) if z else None,
    )
    return first_state(rng, family, (s.b, s.d, s.n)), window, params


def shortconv_params(rng: np.random.Generator, sizes: Sizes, bias: bool = True) -> ShortConvParams:
    return ShortConvParams(rng.normal(size=(sizes.d, sizes.w)), rng.normal(size=sizes.d) if bias else None)


def shortconv_case(
    seed: int, sizes: Sizes, family: Family, bias: bool = True
) -> tuple[Array, ShortConvWindow, ShortConvParams]:
    """The last products, a window and parameters of the short convolution."""
    rng, s = np.random.default_rng(seed), sizes
    params = shortconv_params(rng, s, bias)
    window = ShortConvWindow(*rng.normal(size=(3, s.b, s.t, s.d)))
    return first_state(rng, family, (s.b, s.d, s.w - 1)), window, params


def mamba3_params(
    rng: np.random.Generator, sizes: Sizes, family: Family, pairs: Literal["neighbours", "halves"] = "halves"
) -> Mamba3Params:
    """A floor that some of the decays meet; maps of the inputs where there are several ranks."""
    s = sizes
    maps = [rng.uniform(0.3, 1.2, (s.h, s.r, s.p)) if s.r > 1 else None for _ in range(3)]
    norms, biases = rng.uniform(0.5, 1.5, (2, 2 * s.n)), 1 + rng.normal(0, 0.5, (2, s.h, s.r, 2 * s.n))
    floor = 0.05 if family == "gentle" else 2.0
    steps = dt_bias(rng, (s.h,))
    return Mamba3Params(*norms, *biases, steps, rng.normal(size=s.h), *maps, A_floor=floor, pairs=pairs)


def mamba3_window(
    rng: np.random.Generator, family: Family, params: Mamba3Params, lead: tuple[int, int], sizes: Sizes, z: bool = True
) -> Mamba3Window:
    s, h = sizes, params.heads
    return Mamba3Window(
        x=rng.normal(size=(*lead, h, s.p)),
        dt=raw_steps(rng, family, params.dt_bias, True, (*lead, h)),
        A=inverse_softplus(-decay_rates(rng, family, (*lead, h))),
        trap=rng.normal(size=(*lead, h)),
        angle=rng.normal(size=(*lead, min(s.k, s.n))),
        B=rng.normal(size=(*lead, params.rank, s.g, params.states)),
        C=rng.normal(size=(*lead, params.rank, s.g, params.states)),
        z=rng.normal(size=(*lead, h, s.p)) if z else None,
    )


def mamba3_case(
    seed: int, sizes: Sizes, family: Family, z: bool = True, **options: Any
) -> tuple[Array, Mamba3Window, Mamba3Params]:
    """A state of four pieces, a window and parameters of Mamba-3; options are those of `mamba3_params`."""
    rng, s = np.random.default_rng(seed), sizes
    params = mamba3_params(rng, s, family, **options)
    window = mamba3_window(rng, family, params, (s.b, s.t), s, z)
    return first_state(rng, family, (s.b, s.h, width(s.p, 2 * s.n, min(s.k, s.n), s.r))), window, params


# --------------------------------------------------------------------------------------------------------------- layers


def mixer(kind: Kind, seed: int, sizes: Sizes, family: Family = "gentle") -> layers.Mixer:
    """A recurrent layer. `ssd_grouped` is MambaInLlama's: x and B with g heads, C with one group per head."""
    rng, s = np.random.default_rng([seed, 1]), sizes
    match kind:
        case "ssd":
            params = ssd_params(rng, s, family, D="head")
            return layers.SSDMixer(conv_params(rng, s.h * s.p + 2 * s.g * s.n, s.w), params, s.p, s.n, s.g)
        case "ssd_grouped":
            params = ssd_params(rng, s, family, D="channel", dt_limit=(1e-3, 50.0))
            taps = conv_params(rng, s.g * s.p + s.g * s.n + s.h * s.n, s.w)
            return layers.SSDMixer(taps, params, s.p, s.n, groups=s.h, x_groups=s.g, B_groups=s.g)
        case "delta" | "delta_channel":
            taps = conv_params(rng, 2 * s.g * s.k + s.h * s.v, s.w, bias=False)
            return layers.DeltaMixer(taps, DeltaParams(), s.g, s.h, s.k, s.v)
        case "selective":
            params1 = selective_params(rng, s, family)
            x_proj, dt_proj = rng.normal(size=(s.r + 2 * s.n, s.d)) * s.d**-0.5, rng.normal(size=(s.d, s.r)) * s.r**-0.5
            return layers.SelectiveMixer(conv_params(rng, s.d, s.w), params1, x_proj, dt_proj)
        case "shortconv":
            return ShortConvMixer(NO_CHANNELS, shortconv_params(rng, s))
        case "mamba3":
            return Mamba3Mixer(NO_CHANNELS, mamba3_params(rng, s, family), s.p, s.g, min(s.k, s.n))


def state(mixer: layers.Mixer, seed: int, rows: int, family: Family = "gentle") -> layers.MixerState:
    """A state that has seen something."""
    rng, zero = np.random.default_rng([seed, 2]), layers.new_state(mixer, rows)
    return layers.MixerState(rng.normal(size=zero.M.shape), first_state(rng, family, zero.S.shape))


def inputs(
    mixer: layers.Mixer,
    seed: int,
    rows: int,
    tokens: int,
    family: Family = "gentle",
    z: bool = True,
    channel_gate: bool = False,
) -> layers.MixerInputs:
    """A window of tokens for a layer; `channel_gate` gives a delta-rule layer the gate of Kimi Delta Attention."""
    rng, lead = np.random.default_rng([seed, 3]), (rows, tokens)
    pre = rng.normal(size=(*lead, mixer.conv.weight.shape[0]))
    match mixer:
        case layers.SSDMixer():
            heads = mixer.params.A.shape[0]
            dt = raw_steps(rng, family, mixer.params.dt_bias, mixer.params.dt_softplus, (*lead, heads))
            gate = rng.normal(size=(*lead, heads, mixer.channels)) if z else None
            return layers.MixerInputs(pre, layers.SSDGates(dt, gate))
        case layers.DeltaMixer():
            heads = mixer.value_heads
            shape = (*lead, heads, mixer.key_channels) if channel_gate else (*lead, heads)
            return layers.MixerInputs(
                pre, layers.DeltaGates(log_decays(rng, family, shape), sigmoid(rng.normal(size=(*lead, heads))))
            )
        case layers.SelectiveMixer():
            return layers.MixerInputs(pre, layers.SelectiveGates(rng.normal(size=pre.shape) if z else None))
        case ShortConvMixer():
            return layers.MixerInputs(pre, ShortConvGates(*rng.normal(size=(3, *lead, len(mixer.params.weight)))))
        case Mamba3Mixer():
            sizes = Sizes(p=mixer.channels, g=mixer.groups, k=mixer.angles, n=mixer.params.states // 2)
            return layers.MixerInputs(pre, mamba3_window(rng, family, mixer.params, lead, sizes, z))
    raise AssertionError(f"a {type(mixer).__name__} is of no kind that is drawn here")


def tokens(
    kind: Kind, mixer: layers.Mixer, seed: int, rows: int, count: int, family: Family = "gentle"
) -> layers.MixerInputs:
    """A window of tokens for a layer of a kind."""
    return inputs(mixer, seed, rows, count, family, channel_gate=kind == "delta_channel")


def layer(
    kind: Kind, seed: int, sizes: Sizes, family: Family = "gentle"
) -> tuple[layers.Mixer, layers.MixerState, layers.MixerInputs]:
    """A layer of a kind, a state with sizes.b rows, and one window of sizes.t tokens."""
    made = mixer(kind, seed, sizes, family)
    return made, state(made, seed, sizes.b, family), tokens(kind, made, seed, sizes.b, sizes.t, family)
