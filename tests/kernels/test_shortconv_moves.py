"""The short convolution's kernels for prompts, commits and rings: oracle, bytes, bits, planted faults."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ssmspec_kernels.shared.cursors import commit_window
from ssmspec_kernels.shortconv import (
    shortconv_buffered,
    shortconv_commit,
    shortconv_flush,
    shortconv_packed,
    shortconv_scan,
)
from ssmspec_kernels.shortconv.shortconv_ring import Ring
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.records import rows as of_rows
from ssmspec_ref.shapes import Array
from ssmspec_ref.shortconv import ShortConvParams, ShortConvWindow
from tests.kernels.device import COMPILED
from tests.kernels.mutants import caught, mutated
from tests.kernels.shortconv_cases import LOOSE, Case, Options, case
from tests.kernels.tensors import BYTES, Kept, check_within, contract, doubles, draw, strided, watch

PARAMETERS = ("weight", "bias", "slots", "bounds", "fresh", "advanced", "path", "rows", "lengths", "origin", "held")


def check_moved(seen: Any, expected: int) -> None:
    """The bytes of the formula, each address once, and no access outside; nothing is recorded on a GPU."""
    if not COMPILED:
        assert seen.outside == seen.races == []
        assert seen.distinct_bytes() - sum(seen.loaded(name).distinct for name in PARAMETERS) == expected


def owned_by(rows: Any, bounds: Array) -> Tensor:
    return torch.from_numpy(np.concatenate([np.arange(bounds[row], bounds[row + 1]) for row in rows]))


# --- prompts ---

LENGTHS = {0: (3, 2, 0, 17, 1), 1: (5, 8), 2: (1, 1, 1, 30, 1), 3: (7, 7, 7), 4: (40,)}
PROMPTS = [
    Options(b=5, seed=0),
    Options(b=2, d=5, w=2, state="bf16", io="bf16", bias=False, seed=1),
    Options(b=5, d=16, w=8, io="bf16", index=torch.int64, seed=2),
    Options(b=3, d=3, w=4, state="fp16", io="fp16", padding=False, seed=3),
    Options(b=1, d=2, w=5, io="bf16", seed=4),
]


def run_of(o: Options, fresh: bool) -> tuple[Case, dict[str, Any], Array]:
    """A case as one run, two tokens behind the last sequence; those that start anew have NaN in their slots."""
    made, lengths = case(Options(**{**vars(o), "t": max(LENGTHS[o.seed])})), LENGTHS[o.seed]
    bounds, rng = np.cumsum([0, *lengths]), np.random.default_rng(o.seed)
    anew = (np.arange(o.b) % 2 == 0) & fresh
    made.S0[anew[made.rows]] = 0.0
    made.tensors["S"][made.named[torch.from_numpy(anew[made.rows])]] = float("nan")
    flat = {}
    for name, gap in {"B": 3, "C": 4, "x": 7}.items():
        whole = np.full((bounds[-1] + 2, o.d), np.nan)
        for i, row in enumerate(made.rows):
            whole[bounds[row] : bounds[row + 1]] = getattr(made.window, name)[i, : lengths[row]]
        flat[name] = strided(whole, o.io, gap)
    flat["out"] = strided(np.full((bounds[-1] + 2, o.d), np.nan), o.io, gap=5)
    flat["bounds"] = torch.from_numpy(bounds).to(o.index)
    if fresh:
        flat["fresh"] = torch.from_numpy(anew)
    assert rng is not None
    return made, {**made.tensors, **flat}, bounds


def check_packed(module: ModuleType, o: Options) -> None:
    """Outputs and last columns of every sequence, bystanders, bytes; once with sequences that start anew."""
    for fresh in (False, True):
        made, tensors, bounds = run_of(o, fresh)
        kept = Kept(**tensors)
        with watch(**tensors) as seen:
            got = module.shortconv_packed(**tensors, block_t=8, block_d=8)
        assert got is tensors["out"]
        kept.check(out=owned_by(made.rows, bounds), S=made.named)
        state, io, expected = BYTES[o.state], BYTES[o.io], 0
        for i, row in enumerate(made.rows):
            tokens, only = int(bounds[row + 1] - bounds[row]), [i]
            wanted = made.S0[only]
            if tokens:
                first = of_rows(made.window, np.array(only))
                cut = ShortConvWindow(*(getattr(first, name)[:, :tokens] for name in "BCx"))
                y, S = eb.shortconv.scan(wanted, cut, made.params, contract(o.state, o.io))
                check_within(doubles(tensors["out"])[None, bounds[row] : bounds[row + 1]], y)
                check_within(doubles(tensors["S"][made.named[only]]), S)
            else:
                assert np.array_equal(doubles(tensors["S"][made.named[only]]), wanted)
            anew = fresh and row % 2 == 0
            if tokens >= o.w - 1 and not anew:
                expected += module.traffic_bytes(tokens, 1, o.d, o.w, state=state, io=io)
            else:  # columns that are kept are read, and nothing of an empty sequence but zeros for a new one
                read = 0 if anew or not tokens else o.w - 1
                written = o.w - 1 if tokens or anew else 0
                expected += o.d * (4 * tokens * io + (read + written) * state)
        check_moved(seen, expected)


@pytest.mark.parametrize("o", PROMPTS, ids=str)
def test_prompts_equal_the_oracle_and_touch_nothing_else(o: Options) -> None:
    check_packed(shortconv_packed, o)


def test_a_prompt_has_the_bits_of_a_window() -> None:
    made, other = (case(Options(t=6, padding=False)) for _ in range(2))
    y = shortconv_scan.shortconv_scan(**made.without("out"))
    run = {name: x.flatten(0, 1).contiguous() if name in "BCx" else x for name, x in other.without("out").items()}
    found = shortconv_packed.shortconv_packed(**run, bounds=torch.arange(0, 25, 6))
    assert torch.equal(found.view(y.shape), y)
    assert torch.equal(other.tensors["S"][other.named], made.tensors["S"][made.named])


# --- commits ---

COMMITS = [
    Options(),
    Options(t=7, w=8, io="bf16", index=torch.int64, seed=1),
    Options(t=3, d=5, w=4, state="bf16", io="bf16", seed=2),
    Options(t=6, d=9, w=2, state="fp16", io="fp16", seed=3),
]
LAYERS, DRAFTS = 2, 3


def replayed(o: Options) -> tuple[dict[str, Any], Array, Array, Array]:
    """Inputs of two layers and three drafts a row, NaN where they are not accepted; paths, and the live rows."""
    rng, m = np.random.default_rng(o.seed), o.b * DRAFTS
    live, taken = np.arange(o.b) != 1, rng.integers(1, o.t + 1, o.b)
    taken[0], taken[-1] = o.t, 0
    chosen = np.arange(o.b) * DRAFTS + rng.integers(0, DRAFTS, o.b)
    path = np.full((o.b, o.t), -1)
    for b, n in enumerate(taken):
        path[b, :n] = np.sort(rng.choice(o.t, n, replace=False)) if o.seed % 2 else np.arange(n)
    dead = np.ones((m, o.t), dtype=bool)
    for row in np.flatnonzero(live):
        dead[chosen[row], path[row, : taken[row]]] = False
    B, x = (np.where(dead[:, :, None], np.nan, draw(rng, LAYERS, m, o.t, o.d, forms=(o.io,))) for _ in range(2))
    slots = 1 + rng.permutation(o.b + LOOSE - 1)[: o.b]
    slots[-1], slots[1] = 0, -1
    S = np.full((LAYERS, o.b + LOOSE, o.d, o.w - 1), np.nan)
    S[:, slots[live]] = draw(rng, LAYERS, int(live.sum()), o.d, o.w - 1, forms=(o.state,))
    how = {"path": torch.from_numpy(path)} if o.seed % 2 else {"advanced": torch.from_numpy(taken)}
    tensors = {"S": strided(S, o.state), "B": strided(B, o.io, 4), "x": strided(x, o.io, 2)}
    tensors |= {"rows": torch.from_numpy(chosen), "slots": torch.from_numpy(slots).to(o.index), **how}
    return tensors, path, chosen, live


def check_commit(module: ModuleType, o: Options) -> None:
    """Columns of every layer within the bound of the accepted tokens, bystanders, bytes."""
    tensors, path, chosen, live = replayed(o)
    kept, start, own = Kept(**tensors), doubles(tensors["S"].clone()), tensors["slots"].long()
    with watch(**tensors) as seen:
        module.shortconv_commit(**tensors, block_d=4)
    kept.check(S=(slice(None), own[torch.from_numpy(live)]))
    params = ShortConvParams(np.ones((o.d, o.w)))
    for layer in range(LAYERS):
        for b in map(int, np.flatnonzero(live)):
            nodes, slot = path[b][path[b] >= 0], int(own[b])
            found = doubles(tensors["S"][layer, slot])[None]
            if not len(nodes):
                assert np.array_equal(found[0], start[layer, slot])
                continue
            B, x = (doubles(tensors[name][layer])[chosen[b], nodes][None] for name in "Bx")
            _, S = eb.shortconv.scan(start[layer, slot][None], ShortConvWindow(B, B, x), params, contract(o.state, o.io))
            check_within(found, S)
    taken = [int((path[b] >= 0).sum()) for b in np.flatnonzero(live)]
    check_moved(seen, module.traffic_bytes(taken, LAYERS, o.d, o.w, state=BYTES[o.state], io=BYTES[o.io]))


@pytest.mark.parametrize("o", COMMITS, ids=str)
def test_a_commit_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check_commit(shortconv_commit, o)


@pytest.mark.parametrize("node", [5, 6, 99])
def test_a_node_outside_the_window_is_read_as_zeros(node: int) -> None:
    """The gaps behind the inputs hold NaN."""
    tensors = replayed(Options(seed=1))[0]
    tensors["path"][:] = torch.tensor([node, -1, -1, -1, -1])
    shortconv_commit.shortconv_commit(**tensors)
    own = tensors["slots"][tensors["slots"] >= 0].long()
    assert not tensors["S"][:, own].isnan().any()
    assert not tensors["S"][:, own][..., -1].any()


# --- rings ---

RINGS = [
    Options(t=3),
    Options(t=4, w=2, io="bf16", index=torch.int64, seed=1),
    Options(t=3, d=5, w=8, state="bf16", io="bf16", live=True, seed=2),
    Options(t=3, d=9, w=4, state="fp16", io="fp16", live=True, padding=False, seed=3),
]
CAPACITY = 9
"""Three windows of three tokens: a row that holds four is due."""


class Beside:
    """One row beside the kernels: its checkpoint, and the tokens held since."""

    def __init__(self, o: Options, S: Array, params: ShortConvParams) -> None:
        self.S, self.params, self.rules, self.held = S, params, contract(o.state, o.io), np.zeros((2, 1, 0, o.d))

    def read(self, B: Array, C: Array, x: Array) -> Any:
        """Outputs of further tokens (t, d) with their bounds, and the columns behind them."""
        (past_B, past_x), new = self.held, len(x)
        run = (np.concatenate([past, a[None]], axis=1) for past, a in ((past_B, B), (past_x, C), (past_x, x)))
        y, S = eb.shortconv.scan(self.S, ShortConvWindow(*run), self.params, self.rules)
        return y[:, y.value.shape[1] - new :], S

    def folded(self) -> Any:
        """The checkpoint with all that is held."""
        B, x = self.held
        return eb.shortconv.scan(self.S, ShortConvWindow(B, B, x), self.params, self.rules)[1]

    def accept(self, B: Array, x: Array) -> None:
        self.held = np.concatenate([self.held, np.stack([B, x])[:, None]], axis=2)

    @property
    def count(self) -> int:
        return self.held.shape[2]


def check_rings(module: ModuleType, o: Options, flush: ModuleType = shortconv_flush) -> None:
    """Eight windows, each accepted in part, then a flush: outputs and checkpoints beside the oracle; bystanders; bytes."""
    rng, made = np.random.default_rng(o.seed), case(o)
    fixed = {name: made.tensors[name] for name in ("S", "weight", "slots", "out", "bias") if name in made.tensors}
    S, own, state, io = fixed["S"], made.named, BYTES[o.state], BYTES[o.io]
    u = strided(np.full((len(S), CAPACITY, o.d), np.nan), "fp32", gap=6)
    ring = Ring(u, torch.from_numpy(rng.integers(0, CAPACITY, len(S))).int(), torch.zeros(len(S), dtype=torch.int32))
    oracles = [Beside(o, made.S0[[i]], made.params) for i in range(len(made.rows))]
    for turn in range(8):
        lengths = rng.integers(0, o.t + 1, o.b) if o.live else np.full(o.b, o.t)
        window, dead = (
            case(Options(**{**vars(o), "live": False, "seed": 10 * o.seed + turn})),
            np.arange(o.t) >= lengths[:, None],
        )
        dead[[b for b in range(o.b) if b not in made.rows]] = True
        tokens = {name: window.tensors[name] for name in "BCx"}
        for x in tokens.values():
            x[torch.from_numpy(dead)] = float("nan")
        given = tokens | fixed | {"lengths": torch.from_numpy(lengths)}
        touched = given | {"ring.u": u, "origin": ring.origin, "held": ring.held}
        kept, before, expected = Kept(**touched), doubles(S[own]), 0
        with watch(**touched) as seen:
            module.shortconv_buffered(**given, ring=ring, window=o.t, block_d=4)
        kept.check(out=torch.from_numpy(made.rows), S=own, **{"ring.u": own})
        taken = np.array([int(rng.integers(0, n + 1)) for n in lengths])
        for i, (row, oracle) in enumerate(zip(made.rows, oracles, strict=True)):
            real, found = int(lengths[row]), doubles(S[own[[i]]])
            B, C, x = (doubles(tokens[name])[row, :real] for name in "BCx")
            if real:
                check_within(made.outputs[[i], :real], oracle.read(B, C, x)[0])
            assert not made.outputs[i, real:].any()
            sizes = {"capacity": CAPACITY, "window": o.t, "state": state, "io": io}
            expected += module.traffic_bytes([oracle.count], real, o.d, o.w, **sizes) + (o.t - real) * o.d * io
            if oracle.count + 2 * o.t <= CAPACITY or not real:
                assert np.array_equal(found[0], before[i])
                expected -= (o.w - 1) * o.d * state if oracle.count + 2 * o.t > CAPACITY else 0
            else:
                check_within(found, oracle.folded())
                oracle.S, oracle.held = found, oracle.held[:, :, :0]
            oracle.accept(B[: taken[row]], x[: taken[row]])
        check_moved(seen, expected)
        how = {"slots": given["slots"], "lengths": given["lengths"], "capacity": CAPACITY, "window": o.t}
        commit_window(ring.origin, ring.held, torch.from_numpy(taken), **how)
    check_flush(flush, o, S, made.tensors["slots"], ring, own, oracles)


def check_flush(
    module: ModuleType, o: Options, S: Tensor, slots: Tensor, ring: Ring, own: Tensor, oracles: list[Beside]
) -> None:
    touched, before = {"S": S, "ring.u": ring.u, "origin": ring.origin, "held": ring.held, "slots": slots}, doubles(S[own])
    kept = Kept(**touched)
    with watch(**touched) as seen:
        module.shortconv_flush(S, ring, o.b, slots=slots, block_d=4)
    kept.check(S=own)
    for i, oracle in enumerate(oracles):
        if oracle.count:
            check_within(doubles(S[own[[i]]]), oracle.folded())
        else:
            assert np.array_equal(doubles(S[own[i]]), before[i])
    check_moved(seen, module.traffic_bytes([oracle.count for oracle in oracles], o.d, o.w, state=BYTES[o.state]))


@pytest.mark.parametrize("o", RINGS, ids=str)
def test_windows_behind_a_ring_equal_the_oracle_and_touch_nothing_else(o: Options) -> None:
    check_rings(shortconv_buffered, o)


def ring_for(made: Case, capacity: int = CAPACITY) -> Ring:
    slots = len(made.tensors["S"])
    empty = torch.zeros(slots, dtype=torch.int32)
    return Ring(torch.full((slots, capacity, made.options.d), float("nan")), empty, empty.clone())


def test_a_window_behind_an_empty_ring_has_the_bits_of_a_scan() -> None:
    made = case(Options(t=4, padding=False))
    y = shortconv_scan.shortconv_scan(**made.without("out"), write_state=False)
    assert torch.equal(shortconv_buffered.shortconv_buffered(**made.without("out"), ring=ring_for(made)), y)


PACKED = [
    ("_shortconv_packed_kernel", " & (t < tl.load(bounds + sequences))", ""),
    ("_shortconv_packed_kernel", "mine = mine & (slot >= 0)", "mine = mine & (slot > 0)"),
    ("_shortconv_packed_kernel", "(held & (source < begin))", "(mine & (source < begin))"),
    ("_shortconv_packed_kernel", "(C_t * acc)", "acc"),
    ("_shortconv_packed_kernel", "(W - 1 + source - begin)", "(W - 2 + source - begin)"),
    ("_shortconv_packed_kernel", "behind = source >= begin", "behind = source >= 0"),
    ("_shortconv_commit_kernel", "moves = moves | (held == 0)", "moves = moves"),
    ("_shortconv_commit_kernel", "at_x += begin * stride_x_t", "at_x += 0"),
    ("load_product", "return B_t * tl.load", "return tl.load"),
]  # fmt: skip


@pytest.mark.parametrize(("at", "old", "new"), PACKED)
def test_planted_faults_of_prompts_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(shortconv_packed, old, new, at=at), check_packed, PROMPTS)


COMMITTED = [
    ("_shortconv_commit_kernel", "layer * stride_S_i", "layer * stride_B_i"),
    ("_shortconv_commit_kernel", "x + layer * stride_x_i + m * stride_x_m", "x + layer * stride_x_i + b * stride_x_m"),
    ("_shortconv_commit_kernel", "        if moves:\n", "        if first > 1:\n"),
    ("_shortconv_commit_kernel", "path + b * stride_path_b", "path"),
    ("load_advanced", "i = first + k", "i = first + k - 1"),
    ("load_advanced", "node * stride_B_t", "node * stride_x_t"),
    ("load_advanced", "tl.where(i < KEPT, old, new)", "tl.where(i <= KEPT, old, new)"),
    ("load_product", "return B_t * tl.load", "return tl.load"),
    ("traffic_bytes", "min(accepted, kept)", "accepted"),
]  # fmt: skip


@pytest.mark.parametrize(("at", "old", "new"), COMMITTED)
def test_planted_faults_of_commits_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(shortconv_commit, old, new, at=at), check_commit, COMMITS)


BUFFERED = [
    ("_shortconv_buffered_kernel", "(length > 0) & is_due", "(length >= 0) & is_due"),
    ("_shortconv_buffered_kernel", "first + count + t", "first + t"),
    ("_shortconv_buffered_kernel", "mask=inside & real)  # (3)", "mask=inside)  # (3)"),
    ("_shortconv_buffered_kernel", "real = tl.cast(t, tl.int64), t < length", "real = tl.cast(t, tl.int64), t <= length"),
    ("load_held", "first + i - KEPT", "first + i - KEPT + 1"),
    ("load_held", "i = count + k", "i = count + k + 1"),
    ("is_due", "held + 2 * WINDOW > CAPACITY", "held + 2 * WINDOW >= CAPACITY"),
    ("read_token", "y_t = C_t * filtered(", "y_t = filtered("),
]  # fmt: skip


@pytest.mark.parametrize(("at", "old", "new"), BUFFERED)
def test_planted_faults_of_rings_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(shortconv_buffered, old, new, at=at), check_rings, RINGS)


FLUSHED = [
    ("_shortconv_flush_kernel", "(count > 0)", "(count > 1)"),
    ("_shortconv_flush_kernel", "slot * stride_u_s", "(slot + 1) * stride_u_s"),
    ("load_held", "mask=inside & (i >= KEPT)", "mask=inside & (i > KEPT)"),
]


@pytest.mark.parametrize(("at", "old", "new"), FLUSHED)
def test_planted_faults_of_flushes_are_caught(at: str, old: str, new: str) -> None:
    mutant = mutated(shortconv_flush, old, new, at=at)
    assert caught(mutant, lambda module, o: check_rings(shortconv_buffered, o, module), RINGS)
