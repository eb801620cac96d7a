"""Faults that two options show together, each right alone: a pool with a gate, a filter of another width, a single row or
long runs; fresh rows whose first token is dead; end-of-sequence tokens in a tree; two settings of one request."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import conv, ssd
from ssmspec_ref.attention import KVState, append
from ssmspec_ref.contract import FLOAT64, Limits
from ssmspec_ref.records import each, prefix
from ssmspec_ref.shapes import Ancestors, Array, Lengths, Parents
from ssmspec_ref.slots import Pool
from ssmspec_ref.tree import live as live_nodes

from ...adapters.reference_parts.pools import EVERY, FRESH, WAYS, pooled
from ...mistakes.mistake import before
from ..fault import planted
from ..windows import Windows, verifies

CHUNK, ROWS, WIDTH, ENDS, MASKED = 64, 8, 3, 3, -1e4
TWICE = Limits({"verify": ("once", "twice")})


def rows_of_width_three(M: Any, u: Array, params: Any) -> tuple[Array, Array]:
    """In the branch of width 3 a row of a pool reads the slot with its own number. Bug class SLOT-SCOPE."""
    if not isinstance(M, Pool) or params.weight.shape[1] != WIDTH:
        found: tuple[Array, Array] = pooled(conv.scan)(M, u, params)
        return found
    y, rows = conv.scan(M.states[: len(u)], u, params)
    return y, M.written(rows)


def one_row_in_slot_zero(S: Any, token: Any, params: Any) -> tuple[Array, Array]:
    """In a batch of one row slot 0 is read. Bug class SLOT-SCOPE."""
    if not isinstance(S, Pool) or len(S.read) > 1 or S.read[0] < 0:
        found: tuple[Array, Array] = pooled(ssd.step)(S, token, params)
        return found
    y, row = ssd.step(S.states[:1], token, params)
    pool = S.states.copy()
    pool[S.write] = row
    return y, pool


def no_states_in_a_chunk(S: Any, window: Any, params: Any) -> tuple[Array, Array]:
    """Without an initial state every chunk of 64 tokens starts from zeros. Bug class CHUNK."""
    zeros = np.zeros((*window.x.shape[:1], *window.x.shape[2:], window.B.shape[3]))
    if S is not None or window.x.shape[1] <= CHUNK:
        found: tuple[Array, Array] = pooled(ssd.scan, lambda *_: zeros)(S, window, params)
        return found
    y, _ = ssd.scan(zeros, prefix(window, CHUNK), params)
    y_tail, after = ssd.scan(zeros, each(lambda a: a[:, CHUNK:], window), params)
    return np.concatenate([y, y_tail], axis=1), after


def gate_behind_padding(z: Array, read: Array | None, bounds: Array) -> Array:
    """After a sequence that is padding z is read one token late. Bug class INDEX."""
    if read is None or not (read < 0).any():
        return z
    begin = int(bounds[np.flatnonzero(read < 0)[0] + 1])
    return np.concatenate([z[:, :begin], np.roll(z[:, begin:], 1, axis=1)], axis=1)


class KeepsTheFirstGate(Windows):
    """A window that is verified twice has z of the first time. Bug class SCHED."""

    def start(self) -> None:
        self.z: Array | None = None

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        self.z = window.z if self.z is None else self.z
        return super().verify(window if window.z is None else replace(window, z=self.z), parents)

    def commit(self, advanced: Lengths, path: Array) -> None:
        self.z = None
        super().commit(advanced, path)


def first_ends_in_a_tree(eos: tuple[int, ...], parents: Array) -> tuple[int, ...]:
    """In a tree only three tokens end a sequence, in a chain all of them. Bug class STOP."""
    chain = ((parents == np.arange(parents.shape[1]) - 1) | (parents < -1)).all()
    return eos if chain else eos[:ENDS]


def largest_from_zero(logits: Array) -> Array:
    """The running maximum of the logits starts at 0 and token 0. Bug class GREEDY."""
    begun = logits.copy()
    begun[..., 0] = np.maximum(begun[..., 0], 0.0)
    return begun


def unless_greedy(own: float, temperature: float) -> float:
    return own if temperature else 0.0


def mask_is_a_number(
    K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """A score that is masked is -10000, more than those of a row far below zero. Bug class TREE-MASK."""
    state, nodes = append(KVState(K, V, length), k, v, live_nodes(ancestors)), ancestors.shape[1]
    share, size = q.shape[2] // k.shape[2], q.shape[3] ** -0.5 if scale is None else scale
    y = np.zeros(q.shape)
    for b, T in enumerate(length):
        seen = np.concatenate([np.ones((nodes, T), dtype=bool), ancestors[b]], axis=1)
        for h in range(q.shape[2]):
            keys, values = (np.nan_to_num(x[b, : T + nodes, h // share], posinf=0.0) for x in (state.K, state.V))
            scores = np.where(seen, size * q[b, :, h] @ keys.T, MASKED)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            y[b, :, h] = weights @ values / weights.sum(axis=1, keepdims=True)
    return y


FAULTS = planted(
    (
        before(
            "gate_at_the_slot",
            "With a pool z is read at the slot's number, not at the row's. Bug class INDEX.",
            z=lambda z, read: z if read is None else z[np.maximum(read, 0) % len(z)],
        ),
        "ssd.step",
        "INDEX",
        FLOAT64,
        WAYS,
    ),
    (
        before(
            "norm_of_a_pool",
            "With a pool q and k are always normalised. Bug class VARIANT.",
            l2_norm=lambda l2_norm, read: l2_norm or read is not None,
        ),
        "delta.step",
        "VARIANT",
        FLOAT64,
        WAYS,
    ),
    (rows_of_width_three, "conv.scan", "SLOT-SCOPE", FLOAT64, WAYS),
    (one_row_in_slot_zero, "ssd.step", "SLOT-SCOPE", FLOAT64, WAYS),
    (no_states_in_a_chunk, "ssd.scan", "CHUNK", FLOAT64, EVERY),
    (
        before(
            "fresh_if_the_first_is_live",
            "A fresh row is zeroed by its first token, if that is live. Bug class SLOT-REUSE.",
            fresh=lambda fresh, live: fresh & live[:, 0],
        ),
        "mamba3.scan_masked",
        "SLOT-REUSE",
        FLOAT64,
        FRESH,
    ),
    (before(z=gate_behind_padding), "ssd.scan_packed", "INDEX", FLOAT64, WAYS),
    (KeepsTheFirstGate, "ssd.verify_snapshots", "SCHED", FLOAT64, TWICE),
    (
        verifies(
            "KeysOfTheFirstRows",
            "Without a norm rows from 8 on have the keys of the first 8. Bug class INDEX.",
            Windows,
            k=lambda k, l2_norm: k if l2_norm else k[np.arange(len(k)) % ROWS],
        ),
        "delta.verify_snapshots",
        "INDEX",
    ),
    (before(eos=first_ends_in_a_tree), "acceptance.greedy", "STOP"),
    (before(logits=largest_from_zero), "acceptance.greedy_logits", "GREEDY"),
    (
        before(
            "counts_of_the_greedy",
            "At temperature 0 presence and frequency are not subtracted. Bug class P-MISMATCH.",
            presence=unless_greedy,
            frequency=unless_greedy,
        ),
        "acceptance.process",
        "P-MISMATCH",
    ),
    (mask_is_a_number, "attention.verify_tree", "TREE-MASK"),
)
