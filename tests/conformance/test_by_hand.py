"""Mistakes in implementations that share no code with the planted faults equal the planted fault of the same mechanism."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.cases import Case
from conformance.faults.catalogue import FAULTS
from conformance.faults.fault import EVERYTHING
from conformance.judge.clock import Clock
from conformance.judge.diagnosis import looks_like
from ssmspec_ref.contract import Capability, Limits, Subject, Verdict
from ssmspec_ref.functions import silu, softplus
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

from ..strangers import recurrences
from .judging import FP32, of, planned


def told(operation: str, run: Any, tier: str, some: tuple[str, ...] = (), limits: Limits = EVERYTHING) -> str:
    """What the report says that an implementation equals, by the cases of a tier, or by some of them."""
    jobs, _ = planned(Subject("x", {operation: Capability(run, FP32, limits)}, absent={"": "a part"}), tier)
    jobs = [job for job in jobs if not some or job.identity.removeprefix(f"{operation}/") in some]
    cases: dict[bool, list[Case]] = {True: [], False: []}
    for job in jobs:
        cases[of(job).verdict is Verdict.PASS].append(job.case)
    first = jobs[0]
    return looks_like(first.specification, first.capability, cases[False], cases[True], FAULTS, Clock(30.0)).equal


def steps(window: Any, params: Any) -> Array:
    raw = window.dt if params.dt_bias is None else window.dt + params.dt_bias
    return np.clip(softplus(raw) if params.dt_softplus else raw, *params.dt_limit)


def ssd_with_a_strict_tail(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Token by token; from the last multiple of 16 on, y is read before the token is written."""
    S, dt, tokens = S.astype(np.float64), steps(window, params), window.x.shape[1]
    heads, y = window.x.shape[2], np.zeros(window.x.shape)
    for t in range(tokens):
        B, C = (np.repeat(a[:, t], heads // a.shape[2], axis=1) for a in (window.B, window.C))
        S = S * np.exp(dt[:, t] * params.A)[..., None, None]
        old, S = S, S + (dt[:, t, :, None] * window.x[:, t])[..., None] * B[:, :, None]
        seen = old if t >= tokens // 16 * 16 else S
        y[:, t] = (seen * C[:, :, None]).sum(axis=-1)
    if params.D is not None:
        y += (params.D if params.D.ndim == 2 else params.D[:, None]) * window.x
    y = y if window.z is None else y * silu(window.z)
    return y.astype(np.float32), S.astype(np.float32)


def delta_whose_dead_gates_decay(S: Array, window: Any, params: Any, live: Array) -> tuple[Array, Array]:
    """A dead token has beta 0, and its gate as it came."""

    def dead(a: Array) -> Array:
        return np.where(live.reshape(*live.shape, *[1] * (a.ndim - 2)), a, 0.0)

    q, k, v, beta = map(dead, (window.q, window.k, window.v, window.beta))
    with np.errstate(all="ignore"):
        return recurrences.delta_scan(S, replace(window, q=q, k=k, v=v, beta=beta), params)


def attention_that_forgets_to_rescale(
    K: Array, V: Array, length: Array, q: Array, k: Array, v: Array, ancestors: Array, scale: Any
) -> Array:
    """One query after the other, over tiles of 16 keys; what was summed of the values is left as it is."""
    y = np.zeros_like(q)
    for b, t, h in np.ndindex(q.shape[:3]):
        if not ancestors[b, t, t]:
            continue
        g, seen = h // (q.shape[2] // k.shape[2]), ancestors[b, t]
        keys = np.concatenate([K[b, : length[b], g], k[b, seen, g]])
        values = np.concatenate([V[b, : length[b], g], v[b, seen, g]])
        places = np.concatenate([np.arange(length[b]), length[b] + np.flatnonzero(seen)])
        scores = keys @ q[b, t, h] * (q.shape[3] ** -0.5 if scale is None else scale)
        most, total, summed = -np.inf, 0.0, np.zeros(q.shape[3])
        for tile in np.unique(places // 16):
            own = places // 16 == tile
            larger = max(most, scores[own].max())
            weights = np.exp(scores[own] - larger)
            total, summed, most = total * np.exp(most - larger) + weights.sum(), summed + weights @ values[own], larger
        y[b, t, h] = summed / total
    return y.astype(np.float32)


def tree_that_walks_to_the_root(M: Array, u: Array, parents: Array, params: Any) -> Array:
    """Each node walks up while its parent is above 0, then reads the state from its newest column on."""
    y = np.zeros_like(u)
    for b, node in np.argwhere(parents >= -1):
        taps, at = [u[b, node]], int(parents[b, node])
        while at > 0:
            taps.append(u[b, at])
            at = int(parents[b, at])
        taps = [*taps, *M[b].T[::-1]][: params.width]
        made = sum(params.weight[:, -1 - back] * tap for back, tap in enumerate(taps))
        made = made if params.bias is None else made + params.bias
        y[b, node] = silu(made) if params.activation else made
    return y.astype(np.float32)


def path_of_what_is_above_zero(M: Array, u: Array, path: Array) -> Array:
    made = [np.concatenate([M[b].T, u[b, row[row > 0]]])[-M.shape[2] :].T for b, row in enumerate(path)]
    return np.stack(made).astype(np.float32)


def draft_of_a_search_before_the_suffix(history: Array, tokens: int, longest: int, choice: str) -> Array:
    """An occurrence has to end before the suffix begins."""
    found = np.full((len(history), tokens), -1)
    for b, row in enumerate(history):
        text = row[row >= 0].tolist()
        for n in range(longest, 0, -1):
            ends = [at for at in range(n, len(text) - n + 1) if text[at - n : at] == text[-n:]]
            if ends:
                after = text[(ends[-1] if choice.startswith("l") else ends[0]) :][:tokens]
                found[b, : len(after)] = after
                break
    return found


@pytest.mark.parametrize(
    ("operation", "run", "fault", "tier"),
    [
        ("ssd.scan", ssd_with_a_strict_tail, "strict_tail_of_16", "smoke"),
        ("delta.scan_masked", delta_whose_dead_gates_decay, "dead_gates_decay", "smoke"),
        ("attention.verify_tree", attention_that_forgets_to_rescale, "values_not_rescaled_of_16", "smoke"),
        ("conv.verify_tree", tree_that_walks_to_the_root, "walk_ends_before_the_root", "smoke"),
        ("conv.commit_path", path_of_what_is_above_zero, "zero_is_padding", "smoke"),
        ("draft.lookup", draft_of_a_search_before_the_suffix, "overlap_is_not_found", "standard"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_mistake_made_otherwise_is_told_by_its_planted_fault(operation: str, run: Any, fault: str, tier: str) -> None:
    assert told(operation, run, tier).startswith(f"equals the planted fault `{fault}`")


def packed_past_the_end(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """Chunks of 16 tokens from the start of each sequence; only the end of the run cuts them."""
    y, after = np.zeros(run.x.shape, np.float32), np.where(fresh[:, None, None, None], 0.0, S).astype(np.float32)
    for b in range(len(S)):
        begin, end = int(bounds[b]), int(bounds[b + 1])
        state = after[b : b + 1]
        for start in range(begin, end, 16):
            made, state = recurrences.ssd_scan(state, each(lambda a, s=start: a[:, s : s + 16], run), params)
            y[:, start : min(start + 16, end)] = made[:, : end - start]
        after[b] = state[0]
    return y, after


def selective_with_a_rounded_product(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Sixteen tokens at a time: what they add is scanned from zeros, what is left of the state is a product in bf16."""
    outputs = []
    for start in range(0, window.x.shape[1], 16):
        part = each(lambda a, s=start: a[:, s : s + 16], window)
        y, after = recurrences.selective_scan(S, part, params)
        if part.x.shape[1] == 16:
            raw = part.dt if params.dt_bias is None else part.dt + params.dt_bias
            left = np.exp((softplus(raw) if params.dt_softplus else raw).sum(axis=1)[..., None] * params.A)
            mantissa, exponent = np.frexp(left)
            own = recurrences.selective_scan(np.zeros_like(S), part, params)[1]
            after = (np.ldexp(np.round(mantissa * 256) / 256, exponent) * S + own).astype(np.float32)
        outputs.append(y)
        S = after
    return np.concatenate(outputs, axis=1), S


class RingInSlotOrder(recurrences.Ring):
    """The entries that are held, by the number of their slot."""

    def replayed(self, b: int) -> Array:
        S = self.S[b]
        for at in sorted((self.origin[b] + np.arange(self.held[b])) % recurrences.RING):
            S = self.advanced(S, self.x[b, at], self.dt[b, at], self.B[b, at])
        return S


class SnapshotsWithoutSkippedRows:
    """States of all rows and tokens; of those rows that accept something the first reads row 0, the next row 1, .."""

    def __init__(self, S: Array, params: Any) -> None:
        self.S, self.params = S.astype(np.float32), params

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        state, self.states, outputs = self.S, [], []
        for t in range(window.x.shape[1]):
            y, state = recurrences.ssd_scan(state, each(lambda a, t=t: a[:, t : t + 1], window), self.params)
            self.states.append(state)
            outputs.append(y)
        return np.concatenate(outputs, axis=1)

    def commit(self, advanced: Array, path: Array) -> None:
        self.S = self.S.copy()
        for place, row in enumerate(np.flatnonzero(advanced)):
            self.S[row] = self.states[advanced[row] - 1][place]

    def state(self) -> Array:
        return self.S


def test_a_mistake_in_packed_runs_in_chunks_in_a_ring_or_in_snapshots_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrences, "RING", 16)
    short = Limits(sizes={"t": (1, 16)}, reason="a ring of 16 entries")
    wraps = "b3,t3,g2,h6,p5,n4,j12/lengths=varied,read=last/gentle/s0", "b2,t4,g2,h6,p5,n4,j3/plain/gentle/s0"
    long = "b1,t65,d6,n4/plain/gentle/s0", "b2,t7,d6,n4/plain/gentle/s0"
    assert [
        told("ssd.scan_packed", packed_past_the_end, "smoke").split("`")[1],
        told("selective.scan", selective_with_a_rounded_product, "standard", long).split("`")[1],
        told("ssd.buffered_verify", RingInSlotOrder, "standard", wraps, short).split("`")[1],
        told("ssd.verify_snapshots", SnapshotsWithoutSkippedRows, "smoke").split("`")[1],
    ] == ["chunk_past_the_sequence_of_16", "decay_of_a_full_chunk_in_bf16_of_16", "FoldsInSlotOrderOf16", "SnapshotOfTheRank"]
