"""Wrong past a size that real models have: packed runs, windows, moves of slots, large vocabularies; narrow convolutions."""

from typing import Any

import numpy as np

from ssmspec_ref.shapes import Array, Lengths

from ...adapters.reference_parts.backtracking import AT_ONCE
from ...adapters.reference_parts.processors import only, rank
from ...mistakes.mistake import after, before
from ...mistakes.operators import drop
from ..fault import EVERYTHING, FP32, planted
from ..rollback.windows import LIMITS
from ..sampled.processors import mass_before
from ..windows import Replayed, Ring, Steps, Windows, verifies
from .tiles import moved

StatesInARing = verifies(
    "StatesInARing",
    "With a checkpoint and a ring, the last axis of the state is stored to the 64th entry.",
    Ring,
    state=drop(-1, 64),
)


class StatesOfSteps(Steps):
    """The last axis of the state is read to the 64th entry, token by token."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(drop(-1, 64)(S), params)


def narrow_and_short(M: Array, u: Array, M_next: Array) -> Array:
    """In the branch of width 3, two tokens do not update the oldest column, and one token updates none."""
    stays = M.shape[2] == 3 and u.shape[1] < 3
    return np.where(stays & (np.arange(3) < 5 - 2 * u.shape[1]), M, M_next) if stays else M_next


def narrow_and_exact(M: Array, advanced: Lengths, M_next: Array) -> Array:
    """In the branch of width 3, the oldest column is not updated if two tokens are accepted."""
    stays = (M.shape[2] == 3) & (advanced == 2)[:, None, None] & (np.arange(M.shape[2]) == 0)
    return np.where(stays, M, M_next)


def maximum_of_its_block(y: Array, temperature: float) -> Array:
    """Greedy returns the index of the largest logit within its block of 1024."""
    return y if temperature else (np.arange(y.shape[1]) == (y.argmax(axis=1) % 1024)[:, None]).astype(np.float64)


def most_probable_of_a_block(logits: Array, top_k: int) -> Array:
    """Top-k searches only the first 1024 logits."""
    return np.where((np.arange(logits.shape[1]) >= 1024) & (0 < top_k < logits.shape[1]), -np.inf, logits)


def share_of_a_block(y: Array, top_p: float) -> Array:
    """Top-p keeps 256 tokens at most."""
    return only(y, (mass_before(y) < top_p) & (rank(y) < 256)) if top_p < 1 else y


def known(own: Array) -> Array:
    return np.where(own < 256, own, -1)


FAULTS = planted(
    (
        verifies(
            "OneTileOfStates",
            "The last axis of the state is stored to the 64th entry.",
            Windows,
            state=drop(-1, 64),
        ),
        "ssd.verify_snapshots",
        "INDEX",
    ),
    (
        verifies("OneTileOfHeads", "Heads from the 32nd on are not written.", Windows, y=drop(2, 32)),
        "ssd.verify_snapshots",
        "INDEX",
    ),
    (
        verifies("OneTileOfRows", "Rows from the 32nd on are not written.", Windows, y=drop(0, 32)),
        "ssd.verify_snapshots",
        "INDEX",
    ),
    (
        verifies("OneTileOfChannels", "Channels of a head from the 64th on are not written.", Windows, y=drop(-1, 64)),
        "delta.verify_snapshots",
        "INDEX",
    ),
    (
        verifies("HeadsInReplay", "With replay, heads from the 32nd on are not written.", Replayed, y=drop(2, 32)),
        "ssd.verify_replay",
        "INDEX",
        AT_ONCE,
    ),
    (
        verifies(
            "ChannelsInReplay",
            "With replay, channels of a head from the 64th on are not written.",
            Replayed,
            y=drop(-1, 64),
        ),
        "delta.verify_replay",
        "INDEX",
        AT_ONCE,
    ),
    (StatesInARing, "ssd.buffered_verify", "INDEX", AT_ONCE, LIMITS),
    (
        verifies(
            "RowsInARing",
            "With a checkpoint and a ring, rows from the 32nd on are not written.",
            Ring,
            y=drop(0, 32),
        ),
        "ssd.buffered_verify",
        "INDEX",
        AT_ONCE,
        LIMITS,
    ),
    (StatesInARing, "delta.buffered_verify", "INDEX", AT_ONCE, LIMITS),
    (StatesOfSteps, "ssd.buffered_step", "INDEX", AT_ONCE, EVERYTHING),
    (StatesOfSteps, "delta.buffered_step", "INDEX", AT_ONCE, EVERYTHING),
    (
        after("thirty_two_heads_of_a_run", "Heads of a packed run from the 32nd on are not written.", y=drop(2, 32)),
        "ssd.scan_packed",
        "INDEX",
        FP32,
    ),
    (
        after(
            "sixty_four_values_of_a_run", "Value channels of a packed run from the 64th on are not written.", y=drop(3, 64)
        ),
        "delta.scan_packed",
        "INDEX",
        FP32,
    ),
    (
        before(
            "eight_key_heads_of_a_run",
            "Value heads that belong to key heads from the eighth on read the first.",
            q=lambda q: q[:, :, drop(0, 8)(np.arange(q.shape[2]))],
        ),
        "delta.scan_packed",
        "GROUP-MAP",
        FP32,
    ),
    (
        before(
            "alone_is_never_fresh",
            "A single sequence starts from its slot's previous state.",
            fresh=lambda fresh: fresh & (len(fresh) > 1),
        ),
        "ssd.scan_packed",
        "SLOT-REUSE",
        FP32,
    ),
    (after(M_next=narrow_and_short), "conv.scan", "CONV", FP32),
    (after(M_next=narrow_and_exact), "conv.commit", "CONV", FP32),
    (
        after("moves_four_heads", "Key heads from the fourth on are not moved.", **moved(2, 4)),
        "attention.compact",
        "INDEX",
    ),
    (after(y=maximum_of_its_block), "acceptance.process", "GREEDY"),
    (before(logits=most_probable_of_a_block), "acceptance.process", "P-MISMATCH"),
    (before(top_p=1.0).after(y=share_of_a_block), "acceptance.process", "P-MISMATCH"),
    (
        before(
            "penalties_of_a_block",
            "Tokens from the 256th of the vocabulary on are not counted in the history.",
            prompt=known,
            output=known,
        ),
        "acceptance.process",
        "P-MISMATCH",
    ),
)
