"""Wrong past a size that real models have: packed runs, windows, moves of slots, large vocabularies; narrow convolutions."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import conv
from ssmspec_ref.backtrack import activation_replay, snapshots
from ssmspec_ref.contract import FLOAT64, Adapter, NumericContract
from ssmspec_ref.shapes import Array, Lengths, Parents, Path

from ...adapters.reference_parts import attention, processors
from ...adapters.reference_parts.backtracking import AT_ONCE
from ...adapters.reference_parts.processors import only, rank
from ...adapters.reference_parts.windows import RING, Bare, Stepping
from ..rollback.windows import LIMITS
from ..sampled.processors import mass_before
from ..single import EVERYTHING, Wrong, adapter_of
from .arithmetic import rounded
from .packed import right as right_packed

FP32 = NumericContract()
NOTHING = np.s_[:0]


# --- windows ---


class OneTile(Bare):
    """Correct except past a tile: those parts of the outputs and of the state are 0."""

    path: Any = snapshots
    said: Any = NOTHING
    kept: Any = NOTHING

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(type(self).path, S, params)

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        y = super().verify(window, parents).copy()
        y[self.said] = 0
        return y

    def state(self) -> Array:
        S = super().state().copy()
        S[self.kept] = 0
        return S


class OneTileOfStates(OneTile):
    """The last axis of the state is stored to the 64th entry."""

    kept = np.s_[..., 64:]


class OneTileOfHeads(OneTile):
    """Heads from the 32nd on are not written."""

    said = np.s_[:, :, 32:]


class OneTileOfChannels(OneTile):
    """Channels of a head from the 64th on are not written."""

    said = np.s_[..., 64:]


class OneTileOfRows(OneTile):
    """Rows from the 32nd on are not written."""

    said = np.s_[32:]


class HeadsInReplay(OneTileOfHeads):
    """With replay, heads from the 32nd on are not written."""

    path = activation_replay


class ChannelsInReplay(OneTileOfChannels):
    """With replay, channels of a head from the 64th on are not written."""

    path = activation_replay


class StatesInARing(OneTileOfStates):
    """With a checkpoint and a ring, the last axis of the state is stored to the 64th entry."""

    path = RING


class RowsInARing(OneTileOfRows):
    """With a checkpoint and a ring, rows from the 32nd on are not written."""

    path = RING


class StatesOfSteps(Stepping):
    """The last axis of the state is read to the 64th entry, token by token."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__("step_output_only", np.where(np.arange(S.shape[-1]) < 64, S, 0.0), params)


# --- packed runs ---


def thirty_two_heads_of_a_run(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """Heads of a packed run from the 32nd on are not written."""
    y, S_next = right_packed("ssd", S, run, bounds, fresh, params)
    return rounded(np.where((np.arange(y.shape[2]) < 32)[:, None], y, 0.0), S_next)


def sixty_four_values_of_a_run(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """Value channels of a packed run from the 64th on are not written."""
    o, S_next = right_packed("delta", S, run, bounds, fresh, params)
    return rounded(np.where(np.arange(o.shape[3]) < 64, o, 0.0), S_next)


def eight_key_heads_of_a_run(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """Value heads that belong to key heads from the eighth on read the first."""
    near = np.where(np.arange(run.q.shape[2]) < 8, np.arange(run.q.shape[2]), 0)
    return rounded(*right_packed("delta", S, replace(run, q=run.q[:, :, near]), bounds, fresh, params))


def alone_is_never_fresh(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """A single sequence starts from its slot's previous state."""
    return rounded(*right_packed("ssd", S, run, bounds, fresh & (len(fresh) > 1), params))


# --- narrow convolutions ---


def narrow_and_short(M: Array, u: Array, params: Any) -> tuple[Array, Array]:
    """In the branch of width 3, two tokens do not update the oldest column, and one token updates none."""
    y, M_next = conv.scan(M, u, params)
    stays = M.shape[2] == 3 and u.shape[1] < 3
    return rounded(y, np.where(stays & (np.arange(3) < 5 - 2 * u.shape[1]), M, M_next) if stays else M_next)


def narrow_and_exact(M: Array, u: Array, advanced: Lengths) -> Array:
    """In the branch of width 3, the oldest column is not updated if two tokens are accepted."""
    M_next = conv.commit(M, u, advanced)
    stays = (M.shape[2] == 3) & (advanced == 2)[:, None, None] & (np.arange(M.shape[2]) == 0)
    return np.where(stays, M, M_next).astype(np.float32)


# --- slots and vocabularies ---


def moves_four_heads(K: Array, V: Array, length: Lengths, path: Path) -> tuple[Array, Array]:
    """Key heads from the fourth on are not moved."""
    near, moved = (np.arange(K.shape[2]) < 4)[:, None], attention.compact(K, V, length, path)
    return tuple(np.where(near, new, old) for new, old in zip(moved, (K, V), strict=True))  # type: ignore[return-value]


def maximum_of_its_block(logits: Array, prompt: Array, output: Array, T: float, *rest: Any) -> Array:
    """Greedy returns the index of the largest logit within its block of 1024."""
    p = processors.process(logits, prompt, output, T, *rest)
    if T:
        return p
    return (np.arange(p.shape[1]) == (p.argmax(axis=1) % 1024)[:, None]).astype(np.float64)


def most_probable_of_a_block(logits: Array, prompt: Array, output: Array, T: float, k: int, *rest: Any) -> Array:
    """Top-k searches only the first 1024 logits."""
    far = (np.arange(logits.shape[1]) >= 1024) & (0 < k < logits.shape[1])
    return processors.process(np.where(far, -np.inf, logits), prompt, output, T, k, *rest)


def share_of_a_block(logits: Array, prompt: Array, output: Array, T: float, k: int, share: float, *rest: Any) -> Array:
    """Top-p keeps 256 tokens at most."""
    p = processors.process(logits, prompt, output, T, k, 1.0, *rest)
    return only(p, (mass_before(p) < share) & (rank(p) < 256)) if share < 1 else p


def penalties_of_a_block(logits: Array, prompt: Array, output: Array, T: float, *rest: Any) -> Array:
    """Tokens from the 256th of the vocabulary on are not counted in the history."""
    before, after = (np.where(tokens < 256, tokens, -1) for tokens in (prompt, output))
    return processors.process(logits, before, after, T, *rest)


FAULTS: tuple[Wrong, ...] = (
    (OneTileOfStates, "ssd.verify_snapshots", "INDEX", FLOAT64),
    (OneTileOfHeads, "ssd.verify_snapshots", "INDEX", FLOAT64),
    (OneTileOfRows, "ssd.verify_snapshots", "INDEX", FLOAT64),
    (OneTileOfChannels, "delta.verify_snapshots", "INDEX", FLOAT64),
    (HeadsInReplay, "ssd.verify_replay", "INDEX", AT_ONCE, EVERYTHING),
    (ChannelsInReplay, "delta.verify_replay", "INDEX", AT_ONCE, EVERYTHING),
    (StatesInARing, "ssd.buffered_verify", "INDEX", AT_ONCE, LIMITS),
    (RowsInARing, "ssd.buffered_verify", "INDEX", AT_ONCE, LIMITS),
    (StatesInARing, "delta.buffered_verify", "INDEX", AT_ONCE, LIMITS),
    (StatesOfSteps, "ssd.buffered_step", "INDEX", AT_ONCE, EVERYTHING),
    (StatesOfSteps, "delta.buffered_step", "INDEX", AT_ONCE, EVERYTHING),
    (thirty_two_heads_of_a_run, "ssd.scan_packed", "INDEX", FP32),
    (sixty_four_values_of_a_run, "delta.scan_packed", "INDEX", FP32),
    (eight_key_heads_of_a_run, "delta.scan_packed", "GROUP-MAP", FP32),
    (alone_is_never_fresh, "ssd.scan_packed", "SLOT-REUSE", FP32),
    (narrow_and_short, "conv.scan", "CONV", FP32),
    (narrow_and_exact, "conv.commit", "CONV", FP32),
    (moves_four_heads, "attention.compact", "INDEX", FLOAT64),
    (maximum_of_its_block, "acceptance.process", "GREEDY", FLOAT64),
    (most_probable_of_a_block, "acceptance.process", "P-MISMATCH", FLOAT64),
    (share_of_a_block, "acceptance.process", "P-MISMATCH", FLOAT64),
    (penalties_of_a_block, "acceptance.process", "P-MISMATCH", FLOAT64),
)
"""Each with its operation, its bug class, and what it declares."""


def adapter() -> Adapter:
    return adapter_of("largest", FAULTS)
