"""States that lose bits: wrong scales, wrong rounding, random numbers that are used twice, errors that are not fed back."""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from ssmspec_ref import delta, ssd, state_format
from ssmspec_ref.contract import Adapter, NumericContract
from ssmspec_ref.shapes import Array
from ssmspec_ref.state_format import Kept

from ..single import Wrong, adapter_of

INT8 = NumericContract(state="int8", state_scale="row")
BLOCKS = NumericContract(state="int8", state_scale=2)
FED_BACK = NumericContract(state="int8", state_scale="row", error_feedback="int4")
FP8 = NumericContract(state="fp8_e4m3", state_scale="row")
DRAWN = NumericContract(state="int8", state_scale="row", state_rounding="stochastic")
DRAWN_FP16 = NumericContract(state="fp16", state_rounding="stochastic")
SEEDS = count()
Encode = Callable[[Array, Array], Array]
"""From the state before the call and the one after it: what is read from memory later."""


def fresh(S: Array) -> Array:
    """Numbers for one call, one for each element."""
    return np.random.default_rng(next(SEEDS)).random(S.shape)


def after(definition: Any, S: Array, token: Any, params: Any, encode: Encode) -> tuple[Array, Array]:
    """One token, or a window, of the reference in float32, with the state stored by `encode`."""
    run = definition.scan if hasattr(token, "token") else definition.step
    y, S_next = run(S, token, params)
    return y.astype(np.float32), encode(S, S_next.astype(np.float32).astype(np.float64)).astype(np.float32)


def read(kept: Kept) -> Array:
    """Codes times scales in float32."""
    return kept.scales.astype(np.float32) * kept.codes.astype(np.float32) + kept.residual


def right(contract: NumericContract, definition: Any = ssd, axis: int = -1) -> Callable[..., tuple[Array, Array]]:
    """Correct, for contrast, in any contract."""

    def run(S: Array, *given: Any) -> tuple[Array, Array]:
        y, v = (definition.scan if hasattr(given[0], "token") else definition.step)(S, *given)
        v = v.astype(np.float32).astype(np.float64)
        coins = fresh(v) if contract.state_rounding == "stochastic" else None
        return y.astype(np.float32), read(state_format.keep(v, contract, axis, coins)).astype(np.float32)

    return run


def toward_zero(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """Codes are cut off instead of rounded, as a conversion to an integer does."""
    return after(ssd, S, token, params, lambda _, v: (s := state_format.scales(v, INT8)) * np.trunc(v / s * (1 + 2.0**-23)))


def scale_of_the_neighbour(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """Every block is read with the scale of the block beside it."""

    def encode(_: Array, v: Array) -> Array:
        kept = state_format.keep(v, BLOCKS)
        return np.roll(kept.scales, 2, axis=-1) * kept.codes

    return after(ssd, S, token, params, encode)


def scale_is_not_updated(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """The scales stay those of the state before the call, and what has grown beyond them saturates."""

    def encode(before: Array, v: Array) -> Array:
        s = state_format.scales(before, INT8)
        return s * np.clip(np.rint(v / s), -127, 127)

    return after(ssd, S, token, params, encode)


def one_scale_for_a_head(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """All channels of a head share one scale, that of the largest of them."""

    def encode(_: Array, v: Array) -> Array:
        s = np.abs(v).max(axis=(-1, -2), keepdims=True) / 127
        return s * np.rint(v / np.where(s > 0, s, 1.0))

    return after(ssd, S, token, params, encode)


def zero_over_zero(S: Array, window: Any, params: Any, live: Array) -> tuple[Array, Array]:
    """A block of zeros is divided by its largest value. flashinfer-ai/flashinfer#2645."""
    y, v = ssd.scan(S, window, params, live)
    with np.errstate(invalid="ignore", divide="ignore"):
        s = np.abs(v).max(axis=-1, keepdims=True) / 127
        return y.astype(np.float32), (s * np.rint(v / s)).astype(np.float32)


def values_share_a_scale(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """The delta rule's blocks run along the value channels, over which no output sums."""
    return after(delta, S, token, params, lambda _, v: read(state_format.keep(v, INT8, axis=-1)))


def other_eight_bits(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """e5m2 where e4m3 is declared: one bit fewer in every number."""
    return after(
        ssd, S, token, params, lambda _, v: (s := state_format.scales(v, FP8)) * state_format.nearest(v / s, "fp8_e5m2")
    )


def leans_up(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """Stochastic rounding with numbers in [0, 0.98): two in a hundred too many go up."""
    return after(ssd, S, token, params, lambda _, v: read(state_format.keep(v, DRAWN, coins=0.98 * fresh(v))))


def four_random_bits(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """Stochastic rounding by four bits of a number: the bits below are never drawn."""
    return after(
        ssd, S, token, params, lambda _, v: read(state_format.keep(v, DRAWN_FP16, coins=np.floor(16 * fresh(v)) / 16))
    )


def rounds_to_nearest(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """Declared with stochastic rounding, but rounds to the nearest number, where small updates are lost.
    vllm-project/vllm#35753."""
    return after(ssd, S, token, params, lambda _, v: read(state_format.keep(v, INT8)))


def steps_over_a_neighbour(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """The random number is added before and after the scale is applied, so that some codes are one too far."""

    def encode(_: Array, v: Array) -> Array:
        s = state_format.scales(v, DRAWN)
        return s * np.clip(np.floor(v / s + fresh(v) + np.where(fresh(v) < 0.02, 1.0, 0.0)), -127, 127)

    return after(ssd, S, token, params, encode)


def same_numbers_in_every_call(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """The seed is a constant, as in a captured graph that is replayed."""
    coins = np.random.default_rng(7).random(S.shape)
    return after(ssd, S, token, params, lambda _, v: read(state_format.keep(v, DRAWN, coins=coins)))


def sixteen_seeds(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """The counter of the calls is cut to four bits: every sixteenth call draws the same numbers."""
    coins = np.random.default_rng(next(SEEDS) % 16).random(S.shape)
    return after(ssd, S, token, params, lambda _, v: read(state_format.keep(v, DRAWN_FP16, coins=coins)))


def one_seed_for_all_slots(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """The place of a number in its stream leaves out the slot: all rows draw the same. sgl-project/sglang#26929."""
    coins = np.broadcast_to(fresh(S[:1]), S.shape)
    return after(ssd, S, token, params, lambda _, v: read(state_format.keep(v, DRAWN, coins=coins)))


def one_number_for_a_row(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """One number for all keys of a value channel, as if it were drawn once a thread."""
    coins = np.broadcast_to(fresh(S[:, :, :1]), S.shape)
    return after(delta, S, token, params, lambda _, v: read(state_format.keep(v, DRAWN, -2, coins)))


def feedback_is_dropped(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """The error of rounding is not kept. vllm-project/vllm#55196."""
    return after(ssd, S, token, params, lambda _, v: read(state_format.keep(v, INT8)))


def feedback_is_not_decayed(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """The error of the step before is added to the new state as it was, without the decay of a token."""
    held = state_format.keep(S, FED_BACK)
    lost = S - held.scales * held.codes
    y, _ = after(ssd, S, token, params, lambda _, v: v)
    return y, after(ssd, S - lost, token, params, lambda _, v: read(state_format.keep(v + lost, FED_BACK)))[1]


FAULTS: tuple[Wrong, ...] = (
    (toward_zero, "ssd.step", "NUMERIC", INT8),
    (scale_of_the_neighbour, "ssd.step", "INDEX", BLOCKS),
    (scale_is_not_updated, "ssd.step", "NUMERIC", INT8),
    (one_scale_for_a_head, "ssd.step", "NUMERIC", INT8),
    (zero_over_zero, "ssd.scan_masked", "NUMERIC", INT8),
    (values_share_a_scale, "delta.step", "TRANSPOSE", INT8),
    (other_eight_bits, "ssd.step", "NUMERIC", FP8),
    (leans_up, "ssd.step", "RNG", DRAWN),
    (four_random_bits, "ssd.step", "RNG", DRAWN_FP16),
    (rounds_to_nearest, "ssd.scan", "RNG", DRAWN),
    (steps_over_a_neighbour, "ssd.step", "RNG", DRAWN),
    (same_numbers_in_every_call, "ssd.step", "RNG", DRAWN),
    (sixteen_seeds, "ssd.step", "RNG", DRAWN_FP16),
    (one_seed_for_all_slots, "ssd.step", "RNG", DRAWN),
    (one_number_for_a_row, "delta.step", "RNG", DRAWN),
    (feedback_is_dropped, "ssd.step", "NUMERIC", FED_BACK),
    (feedback_is_not_decayed, "ssd.step", "NUMERIC", FED_BACK),
)
"""Each with its operation, its bug class and what it declares."""


def adapter() -> Adapter:
    return adapter_of("state formats", FAULTS)
