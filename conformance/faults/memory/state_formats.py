"""States that lose bits: wrong scales, wrong rounding, random numbers that are used twice, errors that are not fed back."""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from ssmspec_ref import ssd, state_format
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.shapes import Array
from ssmspec_ref.state_format import Kept

from ...mistakes.mistake import Mistake, after, before
from ..fault import planted

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


def encoded(name: str, says: str, encode: Encode) -> Mistake:
    """A new state that is in float32 first, and then stored by `encode`."""
    return after(
        name,
        says,
        S_next=lambda S, S_next: encode(S, S_next.astype(np.float32).astype(np.float64)).astype(np.float32),
    )


def drawn(contract: NumericContract, coins: Callable[[Array], Array], axis: int = -1) -> Encode:
    """Stored by stochastic rounding with these numbers."""
    return lambda _, v: read(state_format.keep(v, contract, axis, coins(v)))


def nearest(_: Array, v: Array) -> Array:
    return read(state_format.keep(v, INT8))


def cut_off(_: Array, v: Array) -> Array:
    s = state_format.scales(v, INT8)
    return np.asarray(s * np.trunc(v / s * (1 + 2.0**-23)))


def in_e5m2(_: Array, v: Array) -> Array:
    s = state_format.scales(v, FP8)
    return np.asarray(s * state_format.nearest(v / s, "fp8_e5m2"))


def of_the_neighbour(_: Array, v: Array) -> Array:
    kept = state_format.keep(v, BLOCKS)
    return np.roll(kept.scales, 2, axis=-1) * kept.codes


def not_updated(before: Array, v: Array) -> Array:
    s = state_format.scales(before, INT8)
    return np.asarray(s * np.clip(np.rint(v / s), -127, 127))


def of_a_head(_: Array, v: Array) -> Array:
    s = np.abs(v).max(axis=(-1, -2), keepdims=True) / 127
    return np.asarray(s * np.rint(v / np.where(s > 0, s, 1.0)))


def zero_over_zero(S_next: Array) -> Array:
    """A block of zeros is divided by its largest value. flashinfer-ai/flashinfer#2645."""
    s = np.abs(S_next).max(axis=-1, keepdims=True) / 127
    return np.asarray(s * np.rint(S_next / s))


def over_a_neighbour(_: Array, v: Array) -> Array:
    s = state_format.scales(v, DRAWN)
    return np.asarray(s * np.clip(np.floor(v / s + fresh(v) + np.where(fresh(v) < 0.02, 1.0, 0.0)), -127, 127))


def lost(S: Array) -> Array:
    """The error of rounding that is kept beside a state."""
    held = state_format.keep(S, FED_BACK)
    return np.asarray(S - held.scales * held.codes)


def with_the_error_before(S: Array, v: Array) -> Array:
    return read(state_format.keep(v + lost(S), FED_BACK))


FAULTS = planted(
    *(
        (encoded(name, says, encode), operation, bug_class, contract)
        for name, says, operation, bug_class, contract, encode in (
            (
                "toward_zero",
                "Codes are cut off instead of rounded, as a conversion to an integer does.",
                "ssd.step",
                "NUMERIC",
                INT8,
                cut_off,
            ),
            (
                "scale_of_the_neighbour",
                "Every block is read with the scale of the block beside it.",
                "ssd.step",
                "INDEX",
                BLOCKS,
                of_the_neighbour,
            ),
            (
                "scale_is_not_updated",
                "The scales stay those of the state before the call, and what has grown beyond them saturates.",
                "ssd.step",
                "NUMERIC",
                INT8,
                not_updated,
            ),
            (
                "one_scale_for_a_head",
                "All channels of a head share one scale, that of the largest of them.",
                "ssd.step",
                "NUMERIC",
                INT8,
                of_a_head,
            ),
        )
    ),
    (after(S_next=zero_over_zero), "ssd.scan_masked", "NUMERIC", INT8),
    *(
        (encoded(name, says, encode), operation, bug_class, contract)
        for name, says, operation, bug_class, contract, encode in (
            (
                "values_share_a_scale",
                "The delta rule's blocks run along the value channels, over which no output sums.",
                "delta.step",
                "TRANSPOSE",
                INT8,
                nearest,
            ),
            (
                "other_eight_bits",
                "e5m2 where e4m3 is declared: one bit fewer in every number.",
                "ssd.step",
                "NUMERIC",
                FP8,
                in_e5m2,
            ),
            (
                "leans_up",
                "Stochastic rounding with numbers in [0, 0.98): two in a hundred too many go up.",
                "ssd.step",
                "RNG",
                DRAWN,
                drawn(DRAWN, lambda v: 0.98 * fresh(v)),
            ),
            (
                "four_random_bits",
                "Stochastic rounding by four bits of a number: the bits below are never drawn.",
                "ssd.step",
                "RNG",
                DRAWN_FP16,
                drawn(DRAWN_FP16, lambda v: np.floor(16 * fresh(v)) / 16),
            ),
            (
                "rounds_to_nearest",
                "Declared with stochastic rounding, but rounds to the nearest number, where small updates are lost. "
                "vllm-project/vllm#35753.",
                "ssd.scan",
                "RNG",
                DRAWN,
                nearest,
            ),
            (
                "steps_over_a_neighbour",
                "The random number is added before and after the scale is applied, so that some codes are one too far.",
                "ssd.step",
                "RNG",
                DRAWN,
                over_a_neighbour,
            ),
            (
                "same_numbers_in_every_call",
                "The seed is a constant, as in a captured graph that is replayed.",
                "ssd.step",
                "RNG",
                DRAWN,
                drawn(DRAWN, lambda v: np.random.default_rng(7).random(v.shape)),
            ),
            (
                "sixteen_seeds",
                "The counter of the calls is cut to four bits: every sixteenth call draws the same numbers.",
                "ssd.step",
                "RNG",
                DRAWN_FP16,
                drawn(DRAWN_FP16, lambda v: np.random.default_rng(next(SEEDS) % 16).random(v.shape)),
            ),
            (
                "one_seed_for_all_slots",
                "The place of a number in its stream leaves out the slot: all rows draw the same. sgl-project/sglang#26929.",
                "ssd.step",
                "RNG",
                DRAWN,
                drawn(DRAWN, lambda v: np.broadcast_to(fresh(v[:1]), v.shape)),
            ),
            (
                "one_number_for_a_row",
                "One number for all keys of a value channel, as if it were drawn once a thread.",
                "delta.step",
                "RNG",
                DRAWN,
                drawn(DRAWN, lambda v: np.broadcast_to(fresh(v[:, :, :1]), v.shape), -2),
            ),
            (
                "feedback_is_dropped",
                "The error of rounding is not kept. vllm-project/vllm#55196.",
                "ssd.step",
                "NUMERIC",
                FED_BACK,
                nearest,
            ),
        )
    ),
    (
        before(
            "feedback_is_not_decayed",
            "The error of the step before is added to the new state as it was, without the decay of a token.",
            S=lambda S: S - lost(S),
        )
        .of("S_next")
        .after(S_next=lambda S, S_next: with_the_error_before(S, S_next.astype(np.float32).astype(np.float64))),
        "ssd.step",
        "NUMERIC",
        FED_BACK,
    ),
)
