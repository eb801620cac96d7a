"""The delta rule and Kimi Delta Attention over packed trees: every node beside the oracle, no state written."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance.interpreter.memory import Memory
from perf_gates.static.compiled import SHARED
from ssmspec_kernels.delta import delta_tree as kernel
from ssmspec_kernels.delta.delta_chunked import delta_chunked
from ssmspec_kernels.delta.delta_scan import delta_scan
from ssmspec_kernels.delta.delta_tree_products import launch_products
from ssmspec_kernels.kda import kda_pairs, kda_tree
from ssmspec_kernels.kda.kda_scan import kda_scan
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import tree
from ssmspec_ref.delta import tree as oracle
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.records import masked
from ssmspec_ref.shapes import Array
from tests.kernels import delta_cases as cases
from tests.kernels.covers import covered, launcher, planted, rejected
from tests.kernels.delta_cases import Options
from tests.kernels.delta_checks import check_moved, sizes_of
from tests.kernels.mutants import caught, mutated
from tests.trees import SHAPES, packed, parents_of, path_to

COVER = [
    Options(t=5, k=6, v=9, poison=7.0),
    Options(t=13, io="bf16", l2_norm=False, scale=0.7, k=6, v=18, seed=1),
    Options(t=35, channel=True, io="bf16", raw=True, bias=True, g=1, h=2, k=4, v=5, seed=2),
    Options(t=7, raw=True, state="bf16", io="fp16", gentle=True, k=6, v=9, seed=3),
    Options(t=37, io="bf16", gentle=True, g=1, h=2, k=6, v=9, seed=4, poison=-3.0),
    Options(t=1, channel=True, g=1, h=3, k=6, v=9, seed=5),
]
kda = partial(Options, channel=True, g=1, h=2, k=6, v=9)
KDA = [
    kda(t=5, h=4, g=2, poison=7.0),
    kda(t=13, io="bf16", raw=True, bias=True, lower=-5.0, v=18, seed=1),
    kda(t=7, raw=True, state="bf16", io="fp16", gentle=True, l2_norm=False, scale=0.7, k=35, seed=2),
    kda(t=19, io="bf16", strong=True, k=4, v=5, seed=3, poison=-3.0),
    kda(t=1, h=3, seed=4),
    kda(b=2, t=34, io="bf16", raw=True, bias=True, lower=-2.0, k=4, v=5, seed=5),
    kda(b=1, t=33, raw=True, h=1, k=4, v=5, seed=6),
    kda(b=1, t=65, io="bf16", h=1, k=5, v=3, seed=7),
]
PRODUCTS_RAW = Options(b=2, t=33, io="bf16", raw=True, bias=True, g=1, h=2, k=4, v=5, seed=6)
PRODUCTS_SMALL = Options(t=37, io="bf16", gentle=True, g=1, h=1, k=3, v=4, seed=9, poison=7.0)


def trees(o: Options, seed: int = 0) -> Array:
    """Another tree for every row, the rows shorter by some nodes of padding."""
    rng = np.random.default_rng(seed)
    shapes = [SHAPES[(r + seed) % len(SHAPES)] for r in range(o.b)]
    return packed([parents_of(shape, max(1, o.t - 2 * r), int(rng.integers(99))) for r, shape in enumerate(shapes)], o.t)


def poison_padding(case: cases.Case, dead: Array) -> None:
    for x in (case.q, case.k, case.v, case.g, case.beta):
        x[torch.from_numpy(dead)] = float("nan")


def mask_of(ancestors: Array) -> Tensor:
    """The mask with gaps between its rows and columns, all set, as are the rows of padding but for the node itself."""
    b, t, j = ancestors.shape
    room = torch.ones(b + 1, 2 * t, 2 * j, dtype=torch.bool)
    dead = ~np.einsum("btt -> bt", ancestors)
    room[:b, ::2, ::2] = torch.from_numpy(ancestors | (dead[:, :, None] & ~np.eye(t, dtype=bool)))
    return room[:b, ::2, ::2]


def check(launch: Any, o: Options, seed: int | None = None, **tiles: Any) -> None:
    """Every node within the bound, 0 at padding, and nothing else written."""
    case, parents = cases.draw(o), trees(o, o.seed if seed is None else seed)
    ancestors = tree.ancestors(parents)
    live = tree.live(ancestors)
    poison_padding(case, ~live)
    rows, (window, inexact), before = case.rows, case.window(), case.whole()
    window = masked(window, live[rows])
    inexact = {
        name: np.where(live[rows].reshape(live[rows].shape + (1,) * (e.ndim - 2)), e, 0.0) for name, e in inexact.items()
    }
    expected = bound(case, window, inexact, ancestors)
    assert case.call(launch, ancestors=mask_of(ancestors), **tiles) is case.out
    cases.assert_within("o", case.out, expected, rows)
    assert not case.out[rows][torch.from_numpy(~live[rows])].any()
    case.out[rows] = cases.draw(o).out[rows]
    case.check_untouched(before)


def bound(case: cases.Case, window: Any, inexact: dict[str, Array], ancestors: Array) -> Approx:
    """The outputs of the live rows."""
    o = case.options
    rules = o.contract(order="chunked")
    return eb.delta.tree(case.state(), window, ancestors[case.rows], o.params(), rules, inexact=inexact)


@pytest.mark.parametrize(("module", "o"), covered({kernel: [*COVER, PRODUCTS_RAW], kda_tree: KDA}))
def test_every_node_lies_within_the_bound_and_no_state_is_written(module: ModuleType, o: Options) -> None:
    check(launcher(module), o)


@pytest.mark.parametrize("block_v", [16, 32, 64])
def test_other_tiles_lie_within_the_bound(block_v: int) -> None:
    check(kda_tree.kda_tree, kda(t=6, io="bf16", v=37, seed=1), block_v=block_v)


@pytest.mark.parametrize("io", ["fp32", "bf16"])
def test_a_tree_of_128_nodes_lies_within_the_bound(io: str) -> None:
    check(kernel.delta_tree, Options(b=1, t=128, g=1, h=1, k=4, v=5, io=io, gentle=True), 4)


def check_parts(module: ModuleType) -> None:
    """A node meets one other, 16 before it, so that the inverse holds its beta alone: in fp32, as the outputs are here.

    A few roundings of 2^-24 each lie between an output and the sum of its terms, which is of order 1; one to tf32 has 2^-12.
    """
    case = cases.draw(Options(b=1, t=40, g=1, h=1, k=24, v=5, io="bf16", l2_norm=False, scale=1.0), padding=False)
    node = torch.arange(40)
    case.k.copy_(torch.eye(24)[torch.where(node < 32, node % 16, node - 16)][:, None])
    case.q.copy_(case.k)
    case.g.zero_()
    case.S.nan_to_num_(0.0)
    chain = tree.ancestors(packed([parents_of("chain", 40)], 40))
    window, _ = case.window()
    expected = oracle.scan(case.state(), window, chain, case.options.params())
    found = case.call(module.delta_tree, ancestors=torch.from_numpy(chain), inverse=True, out=torch.empty(1, 40, 1, 5))
    assert np.abs(cases.doubles(found) - expected).max() <= 2.0**-18


def test_the_inverse_of_a_large_tree_is_fp32() -> None:
    check_parts(kernel)


@pytest.mark.parametrize("wrong", ['"tf32"), input_precision="ieee")', '"ieee"), input_precision="tf32")'])
def test_a_planted_tf32_product_of_the_inverse_is_caught(wrong: str) -> None:
    assert rejected(mutated(kernel, '"ieee"), input_precision="ieee")', wrong, at="_joined"), check_parts)


@pytest.mark.parametrize("o", [COVER[1], replace(COVER[2], t=19)], ids=str)
def test_a_tree_of_one_path_is_the_window(o: Options) -> None:
    case, other = cases.draw(o), cases.draw(o)
    chain = tree.ancestors(packed([parents_of("chain", o.t)] * o.b, o.t))
    window, inexact = case.window()
    _, state = case.bound(order="chunked")
    expected = bound(case, window, inexact, chain)
    case.call(kernel.delta_tree, ancestors=torch.from_numpy(chain))
    other.call(delta_chunked, write_state=False)
    apart = cases.doubles(case.out)[case.rows] - cases.doubles(other.out)[case.rows]
    assert (abs(apart) <= 2 * expected.error).all()
    assert state.value.shape == case.state().shape


PATHS = {kernel: [Options(t=21, k=6, v=9)], kda_tree: [kda(b=2, t=11)]}


@pytest.mark.parametrize(("module", "o"), covered(PATHS))
def test_every_path_of_a_tree_is_a_scan_along_it_exactly_on_integers(module: ModuleType, o: Options) -> None:
    case, parents = cases.ints(o), trees(o, 3)
    case.call(launcher(module), ancestors=torch.from_numpy(tree.ancestors(parents)))
    for row in range(o.b):
        for node in range(0, o.t, 4 if module is kernel else 3):
            if parents[row, node] == tree.PADDING:
                continue
            path = path_to(parents[row], node)
            along = {x: getattr(case, x)[row : row + 1, path].contiguous() for x in ("q", "k", "v", "g", "beta")}
            y = case.call(
                delta_scan if module is kernel else kda_scan, **along, slots=case.slots[row : row + 1], l2_norm=False,
                scale=1.0, write_state=False, out=None,
            )  # fmt: skip
            assert torch.equal(y[0, -1], case.out[row, node])


def check_bytes(module: ModuleType, o: Options) -> None:
    """Each node and the state are read once, the state requested once, and nothing of it stored. Of the scores between two
    launches only those of pairs that are seen are written and read."""
    case = cases.draw(o, padding=False)
    mask = torch.from_numpy(tree.ancestors(packed([parents_of("comb", o.t)] * o.b, o.t)))
    between = {} if "delta" in module.__name__ else {"pairs": kda_pairs.scratch(o.b, o.h, o.t, mask.device)}
    moved = module.traffic_bytes(o.b, o.t, o.g, o.h, o.k, o.v, **sizes_of(module, case)) - mask.numel()

    def expected(seen: Memory) -> int:
        assert seen.loaded("mask").distinct == mask.numel()
        passed = seen.loaded("pairs").distinct + seen.stored("pairs").distinct
        assert passed == (kda_pairs.traffic_bytes(int(mask.sum()), o.h) if between else 0)
        return int(moved)

    check_moved(
        case, lambda: case.call(launcher(module), ancestors=mask, **between), expected, 1, 0, None, mask=mask, **between
    )


BYTES = {
    kernel: [
        Options(t=5, k=6, v=33),
        Options(t=34, io="bf16", g=1, h=2, k=6, v=9),
        Options(t=3, channel=True, g=1, h=2, k=5, v=9),
        Options(b=1, t=34, channel=True, g=1, h=1, k=4, v=5),
    ],
    kda_tree: [kda(t=5, v=33), kda(b=1, t=18, io="bf16", h=1)],
}


@pytest.mark.parametrize(("module", "o"), covered(BYTES))
def test_bytes_equal_the_formula_and_no_state_is_stored(module: ModuleType, o: Options) -> None:
    check_bytes(module, o)


def test_blocks_of_pairs_that_no_node_sees_are_skipped() -> None:
    """Three chains of 16 nodes, two of which begin at node 0: the block of the third with the second is empty."""
    case = cases.draw(kda(b=1, t=48, h=1, k=4, v=5), padding=False)
    parents = packed([np.array([-1, *range(15), 0, *range(16, 31), 0, *range(32, 47)])], 48)
    pairs = torch.full_like(kda_pairs.scratch(1, 1, 48, case.q.device), torch.nan)
    case.call(kda_tree.kda_tree, ancestors=torch.from_numpy(tree.ancestors(parents)), pairs=pairs)
    blocks = [(i, j) for i in range(0, 48, 16) for j in range(0, i + 1, 16)]
    assert [(i, j) for i, j in blocks if pairs[0, 0, :, i : i + 16, j : j + 16].isnan().all()] == [(32, 16)]


@pytest.mark.parametrize("many", [1, 64, 65, 2048])
@pytest.mark.parametrize("nodes", [16, 32, 64, 128])
def test_a_tile_is_a_power_of_two_of_at_least_sixteen_channels(many: int, nodes: int) -> None:
    for v in (1, 16, 100, 128, 256):
        block, warps = kda_tree.tile(many, v, nodes)
        assert block in (16, 32, 64, 128)
        assert warps in (4, 8)
        assert block >= 64 or nodes <= 32  # smaller ones were compiled to wrong code (`kda_tree.LEAST_V`)


@pytest.mark.nightly
def test_the_largest_tree_in_fp32_fits_the_shared_memory_of_an_sm90() -> None:
    """With Triton's own three stages it takes 278,528 bytes, and an H200 refuses it. Nightly: it compiles for 20 s."""
    command = [sys.executable, "-c", LARGEST_IN_FP32]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert 0 < int(ran.stdout) <= SHARED[90]


LARGEST_IN_FP32 = """
import torch
from perf_gates.static.capture import build, launches_of
from ssmspec_kernels.kda import kda_tree

def meta(*shape):
    return torch.empty(*shape, device="meta")

S, q, k, v = meta(1, 4, 128, 128), meta(1, 128, 2, 128), meta(1, 128, 2, 128), meta(1, 128, 4, 128)
g, beta, mask = meta(1, 128, 4, 128), meta(1, 128, 4), torch.empty(1, 128, 128, dtype=torch.bool, device="meta")
launches = launches_of(lambda: kda_tree.kda_tree(S, q, k, v, g, beta, mask))
print(max(build(launch, 90).compiled.metadata.shared for launch in launches))
"""


@pytest.mark.parametrize("channel", [False, True])
def test_raw_gates_in_bf16_are_taken_as_the_fp32_numbers_that_they_are(channel: bool) -> None:
    o = Options(b=1, t=34, raw=True, channel=channel, g=1, h=1, k=4, v=5, seed=2)
    outputs = []
    for to in (torch.bfloat16, torch.float32):
        case = cases.draw(o, padding=False)
        case.g, case.beta = case.g.bfloat16().to(to), case.beta.bfloat16().to(to)
        outputs.append(case.call(kernel.delta_tree, ancestors=torch.ones(1, 34, 34, dtype=torch.bool).tril()).clone())
    assert torch.equal(*outputs)


@pytest.mark.parametrize(("capability", "trap"), [(9, False), (10, True), (12, True)])
def test_a_large_tree_is_solved_in_blocks_on_a_gpu_where_the_inverse_is_a_trap(
    capability: int, trap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    assert kernel.is_trap(torch.device("cuda")) is trap
    assert not kernel.is_trap(torch.device("cpu"))
    monkeypatch.setattr(kernel, "is_trap", lambda device: trap)
    launched: list[object] = []

    def noted(*args: Any) -> None:
        launched.append(args)
        launch_products(*args)

    monkeypatch.setattr(kernel, "launch_products", noted)
    check(kernel.delta_tree, PRODUCTS_SMALL, 4)
    assert bool(launched) is not trap


FAULTS: dict[ModuleType, list[tuple[str, str, str | None]]] = {
    kernel: [
        ("near &= t[:, None] != t[None, :]", "pass", None),
        ("U, SPLIT)  # (4)", "0.5 * U, SPLIT)  # (4)", None),
        ("R -= dot_both(coupling, U, SPLIT)", "pass", None),
        ("G = tl.sum(tl.where(sees, g_all[None, :], 0.0), axis=1)", "G = g_t", None),
        ("G = tl.dot(sees.to(tl.float32), g_all, input_precision=\"ieee\")", "G = g_t", None),
        ("G_all = _with_block(G_all, G, block)", "G_all = _with_block(G_all, g_t, block)", None),
        ("is_block = tl.arange(0, blocks) == block", "is_block = tl.arange(0, blocks) <= block", None),
        ("t, every, real, every < T, stride_anc", "t, every, t < T, every < T - 1, stride_anc", None),
        ("real = real_nodes(at_mask, t, t < T, stride_anc)", "real = t < T", None),
        ("live = real_nodes(at_mask, every, every < T, stride_anc)", "live = every < T", None),
        ("t[:, None] * stride.t + j[None, :] * stride.j", "t[:, None] * stride.j + j[None, :] * stride.t", "seen_nodes"),
        ("t * (stride.t + stride.j)", "t * stride.t", "real_nodes"),
        ("at_mask = ancestors + b * stride_anc.b", "at_mask = ancestors", None),
        ("if slot >= 0:", "if slot > 0:", None),
        ("if slot >= 0:", "if slot != -2:", None),
        ("mask=(t < T)[:, None] & in_v[None, :]", "mask=(t < T)[:, None] & (j <= V)[None, :]", None),
        ("for i in range(T - 1):", "for i in range(T - 2):", "substituted"),
        ("at_anc = ancestors + b * stride_anc.b", "at_anc = ancestors", "_visible"),
        ("real &= real_nodes(at_anc, t, t < T, stride_anc)", "pass", "_visible"),
        ("G = tl.sum(tl.where(sees, g[None, :], 0.0), axis=1)", "G = tl.cumsum(g, axis=0)", "cumulated"),
        ("G = tl.dot(sees.to(tl.float32), g, input_precision=\"ieee\")", "G = tl.cumsum(g, axis=0)", "cumulated"),
        ("G = tl.sum(tl.where(sees, g_t[None, :], 0.0), axis=1)", "G = g_t", "delta_tree_products_kernel"),
        ("before = sees & (t[:, None] != t[None, :])", "before = sees", "delta_tree_products_kernel"),
        ("g_t, beta_t = gates(g_t, beta_t, decay, bias, A)", "pass", "delta_tree_products_kernel"),
        ("at_anc = ancestors + b * stride_anc.b", "at_anc = ancestors", "delta_tree_products_kernel"),
        ("t, t, real, real, stride_anc", "t, t, real, t < T - 1, stride_anc", "delta_tree_products_kernel"),
        ("of_k = real[:, None]", "of_k = in_t[:, None]", "delta_tree_products_kernel"),
        ("at_beta + t * stride.beta.t, mask=real", "at_beta + t * stride.beta.t, mask=in_t", "delta_tree_products_kernel"),
        ("mask=real[:, None] & in_v[", "mask=in_t[:, None] & in_v[", "delta_tree_products_kernel"),
        ("mask=in_t[:, None] & in_v[None, :])", "mask=in_t[:, None] & (j <= V)[None, :])", "delta_tree_products_kernel"),
        ("* TILES + tile) * BLOCK_V", "* TILES) * BLOCK_V", "delta_tree_products_kernel"),
        ("if slot >= 0:", "if slot > 0:", "delta_tree_products_kernel"),
        ("if slot >= 0:", "if slot != -2:", "delta_tree_products_kernel"),
        ("for i in range(15):", "for i in range(14):", "inverted"),
        ("tl.where(row > column, -low, 0.0)", "tl.where(row > column, low, 0.0)", "_joined"),
        ("(block % 2 == 1)[:, None]", "(block % 2 == 0)[:, None]", "_joined"),
        ("if BLOCKS > 4:\n        X = _joined(X, A, SPLIT)", "if BLOCKS > 4:\n        X = _joined(X, 0.5 * A, SPLIT)",
         "inverted"),
        ("dot_both(A_21, X_1, SPLIT)", "dot_both(X_1, A_21, SPLIT)", "_joined"),
    ],
    kda_tree: [
        ("- tl.trans(G_j)[:, None, :]", "- 0.0 * tl.trans(G_j)[:, None, :]", "kda_pairs_kernel"),
        ("tl.trans(q_i).to(tl.float32)[:, :, None]", "tl.trans(k_i).to(tl.float32)[:, :, None]", "kda_pairs_kernel"),
        ("for _ in range(PARTS):", "for _ in range(PARTS - 1):", "kda_pairs_kernel"),
        ("c += PART", "c += 0", "kda_pairs_kernel"),
        ("G_j = G_i if BLOCKS == 1", "G_j = G_i if BLOCKS > 0", "kda_pairs_kernel"),
        ("block += (pair >= n * (n + 1) // 2)", "block += (pair > n * (n + 1) // 2)", "kda_pairs_kernel"),
        ("(pair - block * (block + 1) // 2) * NODES", "pair % 2 * NODES", "kda_pairs_kernel"),
        ("at + ALL * ALL, to_key", "at, to_key", "kda_pairs_kernel"),
        ("(b * tl.num_programs(1) + h) * (2 * ALL * ALL)", "h * (2 * ALL * ALL)", "kda_pairs_kernel"),
        ("slot_of(slots, b) >= 0", "slot_of(slots, b) > 0", "kda_pairs_kernel"),
        ("at_anc = ancestors + b * stride_anc.b", "at_anc = ancestors", "kda_pairs_kernel"),
        ("BOUNDED=lower_bound is not None", "BOUNDED=False", "launch_pairs"),
        ("n[:, None] > n[None, :], beta_t", "n[:, None] >= n[None, :], beta_t", None),
        ("n[:, None] > n[None, :], beta_t[:, None] * r_k[:, None] *", "n[:, None] > n[None, :], r_k[:, None] *", None),
        ("at_pairs + BLOCK_T * BLOCK_T", "at_pairs", None),
        ("x * tl.reshape(both, x.shape)", "x", None),
        ("read += dot_both(x, state", "read = dot_both(x, state", None),
        ("m < BLOCK_T", "m >= BLOCK_T", None),
        ("v_t - r_k[:, None] * from_key", "v_t - from_key", None),
        ("at_anc = ancestors + b * stride_anc.b", "at_anc = ancestors", None),
        ("if slot >= 0:", "if slot > 0:", None),
        ("if slot >= 0:", "if slot != -2:", None),
        ("tl.program_id(0).to(tl.int64) * BLOCK_V", "0 * BLOCK_V", None),
        ("mask=(n < T)[:, None] & in_v[None, :])", "mask=(n < T)[:, None] & (j <= V)[None, :])", None),
        ("BOUNDED=lower_bound is not None", "BOUNDED=False", "kda_tree"),
        ("beta_t = sigmoid(beta_t)", "pass", "kda_tree_kernel"),
    ],
}  # fmt: skip
JUDGES: dict[ModuleType, list[tuple[Options, int | None, dict[str, int]]]] = {
    kernel: [
        *((COVER[i], None, {}) for i in (0, 1, 3)),
        (replace(COVER[2], t=5, b=2, h=1), 3, {}),
        (Options(t=34, k=3, v=4, g=1, h=1, seed=9, poison=7.0), 4, {}),
        (replace(COVER[2], t=33, b=1, h=1, v=2), 0, {}),
        (PRODUCTS_SMALL, 4, {}),
        (PRODUCTS_RAW, 6, {}),
        (replace(PRODUCTS_SMALL, b=1, t=100, v=70), 0, {"block_v": 128}),
    ],
    kda_tree: [*((KDA[i], None, {}) for i in (0, 1, 2, 3, 5)), (kda(t=6, io="bf16", v=37, seed=1), 1, {"block_v": 16})],
}


@pytest.mark.parametrize(("module", "old", "new", "at"), planted(FAULTS))
def test_planted_fault_is_caught(module: ModuleType, old: str, new: str, at: str | None) -> None:
    mutant = mutated(module, old, new, at=at)
    assert caught(mutant, lambda m, judged: check(launcher(m), *judged[:2], **judged[2]), JUDGES[module])
