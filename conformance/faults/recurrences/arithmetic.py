"""SSD kernels that compute wrongly, or in another precision than they declare. Each subject is named after its fault."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import ssd
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

from ...judge.draw import stored

FP32 = NumericContract()
Scan = Callable[..., tuple[Array, Array]]


def rounded(y: Array, S: Array) -> tuple[Array, Array]:
    """Outputs as stored by a float32 kernel."""
    return y.astype(np.float32), S.astype(np.float32)


def right(S: Array, window: Any, params: Any, live: Any = None) -> tuple[Array, Array]:
    """Correct, for contrast: the oracle, stored in float32."""
    return rounded(*ssd.scan(S, window, params, live))


def state_leak(S: Array, window: Any, params: Any, live: Any = None) -> tuple[Array, Array]:
    """1 % of the neighbouring row's state leaks in. Bug class SLOT-SCOPE."""
    return rounded(*ssd.scan(S + 0.01 * np.roll(S, 1, axis=0 if len(S) > 1 else 1), window, params, live))


def bf16_state(S: Array, window: Any, params: Any, live: Any = None) -> tuple[Array, Array]:
    """The state is stored in bf16 after every token, although float32 is declared. ml-explore/mlx-lm#988."""
    outputs = []
    for t in range(window.x.shape[1]):
        mask = None if live is None else live[:, t : t + 1]
        y, S = ssd.scan(S, each(lambda a, t=t: a[:, t : t + 1], window), params, mask)
        outputs.append(y)
        S = stored(S, "bf16")
    return rounded(np.concatenate(outputs, axis=1), S)


def tf32(S: Array, window: Any, params: Any, live: Any = None) -> tuple[Array, Array]:
    """The operands of S C are rounded to 11 bits, although plain float32 is declared."""
    _, after = ssd.states(S, window, params, live)
    heads = window.x.shape[2]
    y = np.einsum("bthpn, bthn -> bthp", coarse(after), coarse(ssd.per_head(window.C, heads))) + ssd.skip(window.x, params.D)
    y = y if window.z is None else y * window.z / (1 + np.exp(-window.z))
    return rounded(y, after[:, -1])


def coarse(a: Array) -> Array:
    """Rounded to 11 significant bits, as tf32 operands are."""
    mantissa, exponent = np.frexp(a)
    return np.ldexp(np.round(mantissa * 2**11) / 2**11, exponent)


def group_map(S: Array, window: Any, params: Any, live: Any = None) -> tuple[Array, Array]:
    """Head h reads group h mod g instead of h // (h / g). ggml-org/llama.cpp#15625."""
    heads, groups = window.x.shape[2], window.B.shape[2]
    order = np.arange(heads) % groups
    return rounded(*ssd.scan(S, replace(window, B=window.B[:, :, order], C=window.C[:, :, order]), params, live))


def lost_skip(S: Array, window: Any, params: Any, live: Any = None) -> tuple[Array, Array]:
    """D x is omitted."""
    return rounded(*ssd.scan(S, window, replace(params, D=None), live))


def no_op_decays(S: Array, window: Any, params: Any, live: Any = None) -> tuple[Array, Array]:
    """A no-op masks the update but not the decay. huggingface/transformers#48256."""
    if live is None:
        return right(S, window, params)
    dead = ~live[:, :, None, None]
    y, S_next = ssd.scan(S, replace(window, x=np.where(dead, 0, window.x), dt=np.where(dead[..., 0], 0, window.dt)), params)
    return rounded(y, S_next)


def exp2_constant(S: Array, window: Any, params: Any, live: Any = None) -> tuple[Array, Array]:
    """exp(x) as 2^(1.44 x): log2 e cut to three digits."""
    return rounded(*ssd.scan(S, window, replace(params, A=params.A * 1.44 * np.log(2)), live))


def previous_bias(S: Array, window: Any, params: Any, live: Any = None) -> tuple[Array, Array]:
    """dt is computed without its bias."""
    return rounded(*ssd.scan(S, window, replace(params, dt_bias=None), live))


WRONG: tuple[Scan, ...] = (
    state_leak,
    bf16_state,
    tf32,
    group_map,
    lost_skip,
    no_op_decays,
    exp2_constant,
    previous_bias,
)


def subject(scan: Scan) -> Subject:
    capabilities = {name: Capability(scan, FP32) for name in ("ssd.scan", "ssd.scan_masked")}
    return Subject(scan.__name__, capabilities, absent={"": "a fault of the scan"})


def adapter() -> Adapter:
    return Adapter("faulty arithmetic", "1", tuple(map(subject, WRONG)))
