"""Inputs on which every operation is exact, in any order and association: the test is ==, without a tolerance or a bound.

numbers       small integers, so that products are integers and every partial sum, in any order, is below 2^24
decays        exactly 1 (A = 0, dt = 0, g = 0) or exactly 0 (dt A or g at most -1024, below the smallest float64 exponent):
              a state with decay 1 keeps everything, so a truncated history changes the result
dt            raw + bias is 48, 64 or 80, or at most -1000: then softplus is the identity, or 0, to the last bit
silu          z is 0, 64 or 128, and the convolution's sums are multiples of 1024: then silu is the identity, or 0
keys          one channel is +1 or -1, the others 0, without norm; beta is 0 or 1: a key's row is replaced, or nothing changes
biases        integers other than 0

`form` names the formats that must represent every operand and every state: "bf16", 8 significant bits, so that results are
equal in bf16, fp16, tf32 and fp32; or "fp32", where states have up to 16 bits, so that a state stored in bf16 or an operand
rounded to tf32 changes the result. No probe detects a wrong constant in exp; the bounds do (`error_bounds`).

A draw is rejected if an input tensor is constant along an axis, or if rolling it along an axis, or adding 1 to it, changes
neither output nor state: a test with this draw would not detect that the input is misread.

Source: integers are an old practice in tests of matrix products; decays in {0, 1} for recurrences are ours.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from . import conv, delta, selective, ssd
from .conv import ConvParams
from .delta import DeltaParams, DeltaWindow
from .errors import ParameterError
from .selective import SelectiveParams, SelectiveWindow
from .shapes import Array, Channels, ChannelState, ConvState, DeltaState, State
from .ssd import SSDParams, SSDWindow

Form: TypeAlias = Literal["bf16", "fp32"]
Rng: TypeAlias = np.random.Generator

BITS = {"bf16": 8, "fp32": 24}
TRIES = 200
GONE = -64.0  # A whose decay is 0 at the smallest dt, 48
NEVER = -1024.0  # a raw dt whose softplus is 0; a log decay whose exp is 0


def ssd_probe(
    rng: Rng, *, b: int = 2, t: int = 6, h: int = 4, g: int = 2, p: int = 3, n: int = 5, z: bool = True, form: Form = "bf16"
) -> tuple[State, SSDWindow, SSDParams]:
    """State, window and parameters of SSD, with D per head and channel.

    Raises: ParameterError if no draw of these sizes is exact and depends on every input.
    """

    def draw() -> tuple[State, SSDWindow, SSDParams]:
        bias = _integers(rng, 3, h)
        params = SSDParams(rng.choice([0.0, GONE], h), D=_integers(rng, 4, h, p), dt_bias=bias)
        window = SSDWindow(
            x=_integers(rng, 2, b, t, h, p),
            dt=_raw_steps(rng, bias, b, t, h),
            B=_integers(rng, 1, b, t, g, n),
            C=_integers(rng, 2, b, t, g, n),
            z=rng.choice([0.0, 64.0, 128.0], (b, t, h, p)) if z else None,
        )
        return _first_state(rng, form, b, h, p, n), window, params

    return _accepted(draw, ssd, form, _scores)


def selective_probe(
    rng: Rng, *, b: int = 2, t: int = 6, d: int = 6, n: int = 4, z: bool = True, form: Form = "bf16"
) -> tuple[ChannelState, SelectiveWindow, SelectiveParams]:
    """State, window and parameters of the selective scan; each channel and state has its own decays.

    Raises: as `ssd_probe`.
    """

    def draw() -> tuple[ChannelState, SelectiveWindow, SelectiveParams]:
        bias = _integers(rng, 3, d)
        params = SelectiveParams(rng.choice([0.0, GONE], (d, n)), D=_integers(rng, 4, d), dt_bias=bias)
        window = SelectiveWindow(
            x=_integers(rng, 2, b, t, d),
            dt=_raw_steps(rng, bias, b, t, d),
            B=_integers(rng, 1, b, t, n),
            C=_integers(rng, 2, b, t, n),
            z=rng.choice([0.0, 64.0, 128.0], (b, t, d)) if z else None,
        )
        return _first_state(rng, form, b, d, n), window, params

    return _accepted(draw, selective, form)


def delta_probe(
    rng: Rng,
    *,
    b: int = 2,
    t: int = 6,
    h: int = 4,
    g: int = 2,
    k: int = 4,
    v: int = 3,
    channel_gate: bool = False,
    form: Form = "bf16",
) -> tuple[DeltaState, DeltaWindow, DeltaParams]:
    """State, window and parameters of the gated delta rule; with `channel_gate` each key channel has its own decays.

    Raises: as `ssd_probe`.
    """

    def draw() -> tuple[DeltaState, DeltaWindow, DeltaParams]:
        keys = np.eye(k)[rng.integers(0, k, (b, t, g))] * rng.choice([-1.0, 1.0], (b, t, g, 1))
        window = DeltaWindow(
            q=_integers(rng, 2, b, t, g, k),
            k=keys,
            v=_integers(rng, 3 if form == "bf16" else 2**15, b, t, h, v),
            g=rng.choice([0.0, 0.0, 0.0, NEVER], (b, t, h, k) if channel_gate else (b, t, h)),
            beta=rng.choice([0.0, 1.0, 1.0], (b, t, h)),
        )
        return _first_state(rng, form, b, h, k, v), window, DeltaParams(scale=0.5, l2_norm=False)

    return _accepted(draw, delta, form)


def conv_probe(
    rng: Rng, *, b: int = 2, t: int = 6, c: int = 5, w: int = 4, activation: bool = True
) -> tuple[ConvState, Channels, ConvParams]:
    """Window, inputs and parameters of the convolution; exact in every format.

    Raises: as `ssd_probe`.
    """

    def draw() -> tuple[ConvState, Channels, ConvParams]:
        params = ConvParams(1024 * _integers(rng, 2, c, w), 1024 * _integers(rng, 3, c), activation)
        return _integers(rng, 3, b, c, w), _integers(rng, 3, b, t, c), params

    for _ in range(TRIES):
        M, u, params = draw()
        if _all_matter(conv.scan, M, u, params, step=1024.0):
            return M, u, params
    raise _refusal()


def _integers(rng: Rng, most: int, *shape: int) -> Array:
    """Integers of both signs, 1 to `most` in magnitude; a zero would hide its factor."""
    return rng.integers(1, most + 1, shape) * rng.choice([-1.0, 1.0], shape)


def _raw_steps(rng: Rng, bias: Array, *shape: int) -> Array:
    """Raw dt, so that dt after bias and softplus is 48, 64, 80 or, one time in four, 0."""
    dt = rng.choice([48.0, 64.0, 80.0], shape) - bias
    return np.where(rng.random(shape) < 0.25, NEVER, dt)


def _first_state(rng: Rng, form: Form, *shape: int) -> Array:
    """Multiples of 16, like every update dt x B^T; or numbers of 16 bits, some of them odd."""
    return 16 * _integers(rng, 4, *shape) if form == "bf16" else _integers(rng, 2**15, *shape)


def _accepted(
    draw: Callable[[], tuple[Any, Any, Any]], recurrence: Any, form: Form, scores: Callable[..., Array] | None = None
) -> tuple[Any, Any, Any]:
    """The first draw that is exact in the formats and depends on every input; `scores` are operands besides the states."""
    for _ in range(TRIES):
        S, window, params = draw()
        narrow = scores is None or bool(np.all(_width(scores(window, params)) <= BITS[form]))
        if narrow and _exact(S, window, params, recurrence, form) and _all_matter(recurrence.scan, S, window, params):
            return S, window, params
    raise _refusal()


def _all_matter(scan: Callable[..., tuple[Array, Array]], *inputs: Any, step: float = 1.0) -> bool:
    """Whether the result changes with every perturbation of every array."""
    result = scan(*inputs)
    return all(
        any(not np.array_equal(a, b) for a, b in zip(result, scan(*inputs[:i], other, *inputs[i + 1 :]), strict=True))
        for i, record in enumerate(inputs)
        for other in _perturbed(record, step)
    )


def _perturbed(record: Any, step: float) -> Iterator[Any]:
    """An array rolled along each axis, and with `step` added; or a record with each of its arrays perturbed in turn.

    A decay rate A must stay at most 0, so it is reversed instead.
    """
    if isinstance(record, np.ndarray):
        yield from (np.roll(record, 1, axis) for axis in range(record.ndim) if record.shape[axis] > 1)
        yield record + step
        return
    for field in fields(record):
        array = getattr(record, field.name)
        if isinstance(array, np.ndarray):
            others = list(_perturbed(array, step))
            if field.name == "A":
                others[-1] = GONE - array
            yield from (replace(record, **{field.name: other}) for other in others)


def _exact(S: Array, window: Any, params: Any, recurrence: Any, form: Form) -> bool:
    """Whether every state fits the format, and sums of absolute terms are below 2^24 quarter units (so are partial sums)."""
    ungated = replace(window, z=None) if hasattr(window, "z") else window
    y, after = recurrence.states(S, ungated, params)
    sums = max(float(np.abs(y).max()), float(np.abs(after).max()))
    if hasattr(window, "z"):
        sizes = {name: np.abs(getattr(window, name)) for name in ("x", "B", "C")}
        D = None if params.D is None else np.abs(params.D)
        largest, _ = recurrence.scan(np.abs(S), replace(ungated, **sizes), replace(params, D=D))
        sums = float(largest.max())
    return bool(sums < 2.0**22 and np.all(_width(after) <= BITS[form]))


def _scores(window: SSDWindow, params: SSDParams) -> Array:
    """dt_j C_t B_j for every two tokens: in the chunked form an operand of the product with x."""
    each = window.x.shape[2] // window.B.shape[2]
    scores = np.einsum("btgn, bjgn -> btjg", window.C, window.B)
    return np.repeat(scores, each, axis=3) * ssd.step_size(window.dt, params)[:, None]


def _width(values: Array) -> Array:
    """The significant bits of multiples of 1/4."""
    whole = np.abs(4 * values).astype(np.int64)
    odd = whole // np.maximum(whole & -whole, 1)
    return np.ceil(np.log2(odd + 1.0))


def _refusal() -> ParameterError:
    return ParameterError(
        f"none of {TRIES} draws of these sizes was exact with every input mattering; give more tokens, heads or channels, "
        "or fewer tokens where states outgrow bf16"
    )
