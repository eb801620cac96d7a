"""SSD kernels that compute wrongly, or in another precision than they declare."""

from typing import Any

import numpy as np

from ssmspec_ref import ssd
from ssmspec_ref.contract import Adapter
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

from ...judge.draw import stored
from ...mistakes.mistake import before
from ...mistakes.operators import live_only
from ..fault import FP32, adapter_of, planted


def rounded(y: Array, S: Array) -> tuple[Array, Array]:
    """Outputs as stored by a float32 kernel."""
    return y.astype(np.float32), S.astype(np.float32)


def right(S: Array, window: Any, params: Any, live: Any = None) -> tuple[Array, Array]:
    """Correct, for contrast: the oracle, stored in float32."""
    return rounded(*ssd.scan(S, window, params, live))


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


def in_turn(own: Array, x: Array) -> Array:
    """The groups of all heads, dealt to them in turn."""
    return own[:, :, np.arange(x.shape[2]) % own.shape[2]]


FAULTS = planted(
    *(
        (run, ("ssd.scan_masked", "ssd.scan"), bug_class, FP32)
        for run, bug_class in (
            (
                before(
                    "state_leak",
                    "1 % of the neighbouring row's state leaks in. Bug class SLOT-SCOPE.",
                    S=lambda S: S + 0.01 * np.roll(S, 1, axis=0 if len(S) > 1 else 1),
                ),
                "SLOT-SCOPE",
            ),
            (bf16_state, "NUMERIC"),
            (tf32, "NUMERIC"),
            (
                before(
                    "group_map",
                    "Head h reads group h mod g instead of h // (h / g). ggml-org/llama.cpp#15625.",
                    B=in_turn,
                    C=in_turn,
                ),
                "GROUP-MAP",
            ),
            (before("lost_skip", "D x is omitted.", D=None), "VARIANT"),
            (
                before(
                    "no_op_decays",
                    "A no-op masks the update but not the decay. huggingface/transformers#48256.",
                    x=live_only,
                    dt=live_only,
                    live=None,
                ),
                "PAD-LEAK",
            ),
            (
                before(
                    "exp2_constant",
                    "exp(x) as 2^(1.44 x): log2 e cut to three digits.",
                    A=lambda A: A * 1.44 * np.log(2),
                ),
                "NUMERIC",
            ),
            (before("previous_bias", "dt is computed without its bias.", dt_bias=None), "VARIANT"),
        )
    )
)


def adapter() -> Adapter:
    return adapter_of("arithmetic", FAULTS)
