"""`tree_attention` against the oracle, within the bound of its contract; dead slots and padding hold NaN."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.attention import tree_attention as module
from ssmspec_ref import attention, tree
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.attention import AttentionParams, AttentionWindow, KVState
from tests.trees import SHAPES, packed, parents_of

from . import accept_cases, tensors
from .mutants import caught, mutated

I32, I64 = torch.int32, torch.int64
BLOCK = 16
CASES = [
    (1, 4, 7, 6, 3, 20, "bf16", I64, True, True, None),
    (2, 3, 5, 4, 2, 33, "fp32", I32, False, True, 0.4),
    (3, 3, 13, 6, 2, 5, "fp16", I64, True, False, None),
    (4, 2, 40, 2, 1, 16, "fp32", I64, True, True, None),
    (5, 3, 1, 3, 3, 9, "bf16", I32, False, True, 2.0),
]


class Case:
    """Rows of 0 to 50 committed slots in a pool; a tree of its own for each row, or chains."""

    def __init__(
        self,
        seed: int,
        rows: int,
        nodes: int,
        h: int,
        g: int,
        e: int,
        form: Any,
        index: torch.dtype,
        trees: bool,
        append: bool,
        scale: float | None,
    ) -> None:
        rng = np.random.default_rng(seed)
        pool, cache = rows + 2, 50 + nodes
        self.form, self.append, self.scale = form, append, scale
        self.slots = rng.permutation(pool)[:rows]
        self.slots[-1] = -1 if rows > 2 else self.slots[-1]
        self.length = rng.integers(1, 50, pool)
        self.length[self.slots[:2]] = [0, 33]
        sizes = [nodes, *rng.integers(1, nodes + 1, rows - 1)] if trees else [nodes] * rows
        drawn = [parents_of(SHAPES[(b + seed) % 5] if trees else "chain", n, b) for b, n in enumerate(sizes)]
        self.parents = packed(drawn, nodes)
        self.ancestors = tree.ancestors(self.parents)
        self.q, self.k, self.v = (tensors.draw(rng, rows, nodes, n, e, forms=(form,)) for n in (h, g, g))
        self.K, self.V = (tensors.draw(rng, pool, cache, g, e, forms=(form,)) for _ in "KV")
        for b in range(rows):
            for x in (self.q, self.k, self.v):
                x[b, self.parents[b] == tree.PADDING] = np.nan
        for x in (self.K, self.V):
            for slot, T in enumerate(self.length):
                x[slot, T:] = np.nan
        self.tensors: dict[str, Any] = {name: tensors.strided(getattr(self, name), form) for name in "qkvKV"}
        self.tensors |= {
            "length": accept_cases.vector(self.length, index),
            "slots": torch.from_numpy(self.slots).to(index),
            "ancestors": wide(self.ancestors) if trees else None,
            "out": tensors.blank(form, *self.q.shape),
        }

    @property
    def rows(self) -> list[int]:
        return [b for b, slot in enumerate(self.slots) if slot >= 0]

    def call(self, kernel: ModuleType, **tiles: int) -> torch.Tensor:
        given = dict(self.tensors)
        first = [given.pop(name) for name in (*"qkvKV", "length")]
        tiles = {"split": 2 * BLOCK, "block_l": BLOCK, "block_m": 16} | tiles
        parts = kernel.new_parts(*self.q.shape, -(-self.K.shape[1] // tiles["split"]), self.tensors["q"].device)
        for part in parts:
            part.fill_(float("nan"))
        return kernel.tree_attention(*first, **given, scale=self.scale, append=self.append, parts=parts, **tiles)

    def expected(self, b: int) -> tuple[np.ndarray, np.ndarray, KVState]:
        """Outputs of a row, their bound, and its cache behind the call."""
        slot, live = self.slots[b], self.parents[b] != tree.PADDING
        T, row = int(self.length[slot]), slice(b, b + 1)
        window = AttentionWindow(*(np.where(live[:, None, None], x[row], 0.0) for x in (self.q, self.k, self.v)))
        state = KVState(self.K[slot : slot + 1], self.V[slot : slot + 1], np.array([T]))
        y, after = attention.verify(state, window, self.ancestors[row], AttentionParams(scale=self.scale))
        k, v = (np.concatenate([x[slot : slot + 1, :T], w], axis=1) for x, w in ((self.K, window.k), (self.V, window.v)))
        seen = np.concatenate([np.ones((1, len(live), T), dtype=bool), self.ancestors[row]], axis=2)
        seen &= live[None, :, None]
        seen[:, ~live, 0] = True
        contract = tensors.contract(self.form, self.form)
        scale = self.q.shape[3] ** -0.5 if self.scale is None else self.scale
        blocks = -(-T // BLOCK) + -(-len(live) // BLOCK) + -(-T // (2 * BLOCK)) + 1
        exact_q, exact_k, exact_v = (eb.exact(x, contract) for x in (window.q, k, v))
        pair = eb.attention(exact_q, exact_k, exact_v, seen, scale, blocks)
        error = np.where(live[None, :, None, None], pair.store(self.form).error, 0.0)
        return y, error, after


def wide(mask: np.ndarray) -> torch.Tensor:
    """A mask with gaps full of True."""
    whole = torch.ones([2 * n + 1 for n in mask.shape], dtype=torch.bool)
    view = whole[1::2, 1::2, 1::2]
    view.copy_(torch.from_numpy(mask))
    return view


def check(kernel: ModuleType, case: tuple[Any, ...]) -> float:
    """Assert that outputs lie within their bound, that the cache holds the window, and nothing else changed."""
    drawn = Case(*case)
    kept = tensors.Kept(**drawn.tensors)
    assert drawn.call(kernel) is drawn.tensors["out"]
    used = 0.0
    for b in drawn.rows:
        y, error, after = drawn.expected(b)
        found = eb.compare(tensors.doubles(drawn.tensors["out"][b : b + 1]), y, error)
        assert found.passed, f"row {b}: {found}"
        used = max(used, found.utilisation)
        slot, T = int(drawn.slots[b]), int(drawn.length[drawn.slots[b]])
        if drawn.append:
            for name, x in (("K", after.K), ("V", after.V)):
                live = np.flatnonzero(drawn.parents[b] != tree.PADDING)
                assert np.array_equal(tensors.doubles(drawn.tensors[name][slot, T + live]), x[0, T + live])
    for b in drawn.rows if drawn.append else []:
        live = np.flatnonzero(drawn.parents[b] != tree.PADDING)
        slot, T = int(drawn.slots[b]), int(drawn.length[drawn.slots[b]])
        for name in "KV":
            drawn.tensors[name][slot, T + live] = float("nan")
    fresh = Case(*case).tensors
    for name in "KV":
        assert torch.equal(drawn.tensors[name].nan_to_num(7.5), fresh[name].nan_to_num(7.5)), f"{name} changed elsewhere"
    kept.check(out=drawn.rows, K=slice(None), V=slice(None))
    return used


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_lie_within_the_bound_and_the_window_is_appended(case: tuple[Any, ...]) -> None:
    assert check(module, case) > 0


def test_weights_that_are_equal_give_means_exactly() -> None:
    """Keys of zero weigh all values alike; 2^k of them with integer values have an exact mean."""
    q, k = torch.ones(1, 4, 2, 8), torch.zeros(1, 4, 1, 8)
    v, V = torch.arange(32.0).reshape(1, 4, 1, 8), torch.arange(224.0).reshape(1, 28, 1, 8)
    K, length = torch.zeros(1, 28, 1, 8), torch.tensor([28])
    ancestors = torch.ones(1, 4, 4, dtype=torch.bool).tril()
    y = module.tree_attention(q, k, v, K, V, length, ancestors=ancestors, split=16, block_l=16)
    assert torch.equal(y[0, 3], torch.cat([V[0], v[0]]).mean(dim=0).expand(2, 8))


def test_a_row_has_the_same_bits_alone_and_in_any_batch_and_behind_any_cache() -> None:
    drawn = Case(*CASES[0])
    together = drawn.call(module).clone()
    for b in drawn.rows:
        slot = int(drawn.slots[b])
        q, k, v = (drawn.tensors[n][b : b + 1] for n in "qkv")
        K, V = (torch.nn.functional.pad(drawn.tensors[n][slot : slot + 1], (0, 0, 0, 0, 0, 70)) for n in "KV")
        length, ancestors = drawn.tensors["length"][slot : slot + 1], drawn.tensors["ancestors"][b : b + 1]
        tiles: dict[str, Any] = {"split": 2 * BLOCK, "block_l": BLOCK, "block_m": 16}
        alone = module.tree_attention(q, k, v, K, V, length, ancestors=ancestors, **tiles)
        assert torch.equal(alone[0], together[b])


def test_a_chain_is_the_tree_with_one_path_bit_for_bit() -> None:
    drawn = Case(*CASES[1])
    chain = drawn.call(module)[drawn.rows].clone()
    drawn.tensors["ancestors"] = torch.from_numpy(drawn.ancestors)
    assert torch.equal(drawn.call(module)[drawn.rows], chain)


LOST = [("v", float("nan"), "fp32"), ("v", float("inf"), "bf16"), ("k", float("nan"), "bf16")]


@pytest.mark.parametrize(("name", "value", "form"), LOST)
@pytest.mark.parametrize("trees", [True, False])
def test_what_is_not_finite_is_seen_by_the_nodes_behind_it_alone(name: str, value: float, form: str, trees: bool) -> None:
    check_lost(module, name, value, form, trees)


def check_lost(kernel: ModuleType, name: str, value: float, form: str, trees: bool) -> None:
    """One channel of one draft's key or value: the key tells on all channels, the value on its own."""
    case, node, channel = (6, 2, 21, 4, 2, 9, form, I64, trees, False, None), 3, 5
    lost, kept = Case(*case), Case(*case)
    for drawn in (lost, kept):
        drawn.tensors["out"].fill_(7.0)
    lost.tensors[name][0, node, 1, channel] = value
    found, expected = (drawn.call(kernel)[0] for drawn in (lost, kept))
    seen = torch.from_numpy(lost.ancestors[0, :, node])
    reached = torch.zeros(found.shape, dtype=torch.bool)
    reached[:, 2:, slice(None) if name == "k" else channel] = seen[:, None, None] if name == "k" else seen[:, None]
    assert seen.any()
    assert not seen.all()
    assert torch.equal(found.isfinite(), ~reached)
    assert torch.equal(found[~reached], expected[~reached])


def bytes_fit(kernel: ModuleType, append: bool) -> bool:
    b, t, h, g, e, cache = 3, 5, 6, 2, 20, 70
    q, k, v = (torch.zeros(b, t, n, e, dtype=torch.bfloat16) for n in (h, g, g))
    K, V = (torch.zeros(b, cache, g, e, dtype=torch.bfloat16) for _ in "KV")
    out, length = torch.zeros_like(q), torch.tensor([40, 16, 0])
    parts = module.new_parts(b, t, h, e, 5, q.device)
    named = {"q": q, "k": k, "v": v, "K": K, "V": V, "out": out, **parts._asdict()}
    with watch(**named, length=length) as seen:
        kernel.tree_attention(q, k, v, K, V, length, append=append, out=out, parts=parts, split=16, block_l=16)
    crossed = seen.distinct_bytes() - seen.loaded("length").distinct
    stray = seen.outside or seen.races or seen.loaded("K").requested != seen.loaded("K").distinct
    return not stray and crossed == module.traffic_bytes(b, t, h, g, e, 56, 4, append=append)


def test_a_mask_is_read_and_no_padding() -> None:
    assert padding_stays(module)


def padding_stays(kernel: ModuleType) -> bool:
    """The last node of every row is padding: its query, key and value are not read."""
    b, t, h, g, e = 2, 6, 4, 2, 20
    q, k, v, K, V = (torch.zeros(b, n, heads, e) for n, heads in ((t, h), (t, g), (t, g), (18, g), (18, g)))
    length, mask, out = torch.tensor([9, 3]), torch.ones(b, t, t, dtype=torch.bool).tril(), torch.zeros_like(q)
    mask[:, -1, -1] = False
    parts = module.new_parts(b, t, h, e, 2, q.device)
    named = {"q": q, "k": k, "v": v, "K": K, "V": V, "out": out, "length": length, **parts._asdict()}
    with watch(**named, mask=mask) as seen:
        kernel.tree_attention(q, k, v, K, V, length, ancestors=mask, out=out, parts=parts, split=16, block_l=16)
    live = all(seen.loaded(name).distinct == b * (t - 1) * heads * e * 4 for name, heads in (("q", h), ("k", g), ("v", g)))
    return live and not seen.outside and not seen.races and seen.loaded("mask").distinct == b * t * t


@pytest.mark.parametrize("append", [True, False])
def test_bytes_are_the_closed_form_and_live_slots_are_read_once(append: bool) -> None:
    assert bytes_fit(module, append)


def test_a_window_that_does_not_fit_the_cache_is_written_as_far_as_it_reaches() -> None:
    q, k, v = (torch.ones(1, 4, 1, 2) for _ in "qkv")
    K, V = torch.zeros(1, 6, 1, 2), torch.zeros(1, 6, 1, 2)
    length = torch.tensor([4])
    parts, out = module.new_parts(1, 4, 1, 2, 1, q.device), torch.zeros_like(q)
    with watch(q=q, k=k, v=v, K=K, V=V, length=length, out=out, **parts._asdict()) as seen:
        module.tree_attention(q, k, v, K, V, length, append=True, parts=parts, out=out)
    assert seen.outside == []
    assert K[0, :, 0, 0].tolist() == V[0, :, 0, 1].tolist() == [0, 0, 0, 0, 1, 1]


def test_a_window_longer_than_the_cache_has_the_bits_that_it_has_beside_a_long_one() -> None:
    """20 nodes, of which the last lie behind the first block of 16, in front of a cache of 8 slots, and of 40."""
    q, k, v = (torch.from_numpy(np.random.default_rng(i).normal(size=(1, 20, 1, 4))).float() for i in range(3))
    K, V, length = torch.ones(1, 40, 1, 4), torch.arange(160.0).reshape(1, 40, 1, 4), torch.tensor([5])
    found = [module.tree_attention(q, k, v, K[:, :L], V[:, :L], length, split=16, block_l=16) for L in (8, 40)]
    assert torch.equal(*found)


MUTANTS = {
    "dead slots are read": ("there = (l < end)[:, None] & in_e[None, :]", "there = (l < L)[:, None] & in_e[None, :]"),
    "the first dead slot is seen": ("V_l, (l < end)[None, :]", "V_l, (l <= end)[None, :]"),
    "the last slot is not seen": ("V_l, (l < end)[None, :]", "V_l, (l < end - 1)[None, :]"),
    "a part begins one late": ("in range(start, tl.minimum", "in range(start + 1, tl.minimum"),
    "the last part is lost": ("parts = (end + split - 1) // split", "parts = end // split"),
    "the window is left out": ("for turn in range(parts + 1)", "for turn in range(parts)"),
    "later nodes are seen": ("visible = (j[None, :] <= i[:, None])", "visible = (j[None, :] <= i[:, None] + 1)"),
    "a node does not see itself": ("visible = (j[None, :] <= i[:, None])", "visible = (j[None, :] < i[:, None])"),
    "the mask turned": (
        "at = at_mask + t[:, None] * stride.t + j[None, :] * stride.j",
        "at = at_mask + t[:, None] * stride.j + j[None, :] * stride.t",
    ),
    "the query of padding is read": ("q_r = tl.load(of_q, mask=alive[:, None]", "q_r = tl.load(of_q, mask=in_r[:, None]"),
    "padding is read": ("there = real[:, None] & in_e[None, :]", "there = (j < T)[:, None] & in_e[None, :]"),
    "padding has an output": ("value = tl.where(itself[:, None], value, 0.0)", "value = value"),
    "not scaled": ("scale * dot_inputs(", "dot_inputs("),
    "the wrong key head": ("g * EACH + r % EACH", "g + r % EACH * (H // EACH)"),
    "parts weigh alike": ("tl.exp(high - finite), tl.exp(m - finite)", "tl.exp(high - finite), tl.exp(m - m)"),
    "sums are not rescaled": ("return above, shrink * total", "return above, total"),
    "values are not rescaled": ("shrink[:, None] * acc + dot_left", "acc + dot_left"),
    "values to keys' slots": ("tl.store(of_V + (end + j)[:, None] * stride_V.l", "tl.store(of_V + j[:, None] * stride_V.l"),
    "the cache of the row": ("of_K = K + slot * stride_K.s", "of_K = K + b * stride_K.s"),
    "appended unasked": ("if APPEND:", "if T > 0:"),
    "appended by the first block only": ("(first == 0))[:, None]", "(j0 == 0) & (first == 0))[:, None]"),
    "tf32": (
        "scale * dot_inputs(q_r, tl.trans(K_l))",
        'scale * tl.dot(q_r.to(tl.float32), tl.trans(K_l).to(tl.float32), input_precision="tf32")',
    ),
    "what is not finite is multiplied": ("acc, q_r, k_j, known, visible", "acc, q_r, k_j, v_j, visible"),
    "what is not finite is forgotten": ("if tl.max(tl.max(lost, axis=1), axis=0) > 0:", "if T < 0:"),
    "weights in bf16": ("dot_left(p, V_l)", "dot_left(p.to(tl.bfloat16).to(tl.float32), V_l)"),
}


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # a maximum of what must not be read
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_caught(name: str) -> None:
    checks: list[Any] = [lambda kernel, case=case: check(kernel, case) for case in CASES]
    checks += [lambda kernel: check_lost(kernel, *LOST[0], True), lambda kernel: bytes_fit(kernel, False), padding_stays]
    assert caught(mutated(module, *MUTANTS[name]), lambda kernel, judged: judged(kernel), checks)
