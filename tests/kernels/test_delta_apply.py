"""Windows and trees of the delta rule in two launches: the demands on one, and what lies between the two."""

import sys
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.interpreter.memory import Memory, watch
from ssmspec_kernels.delta import delta_apply, delta_chunked, delta_solve, delta_tree
from tests.kernels import delta_cases as cases
from tests.kernels import test_delta_tree as trees
from tests.kernels.covers import rejected
from tests.kernels.delta_cases import Options
from tests.kernels.delta_checks import check_bound, check_exact, check_far_heads, check_last, check_moved, sizes_of
from tests.kernels.mutants import caught, mutated

COVER = [
    Options(t=5, io="bf16", k=17, v=33, seed=2, poison=3.0),
    Options(b=2, t=16, io="bf16", state="bf16", g=1, h=3, v=5, seed=4),
    Options(t=3, raw=True, bias=True, io="bf16", live=True, gentle=True, k=32, v=64, seed=5),
    Options(t=1, io="bf16", h=2, seed=1),
    Options(b=1, spare=1, t=10, io="bf16", state="fp16", gentle=True, l2_norm=False, scale=0.7, k=64, v=70, g=1, h=2, seed=7),
    Options(t=6, gentle=True, live=True, io="bf16", seed=9),
]
TREES = [
    Options(t=5, io="bf16", k=6, v=9, poison=7.0),
    Options(t=13, io="bf16", l2_norm=False, scale=0.7, k=6, v=18, gentle=True, seed=1),
    Options(t=7, io="bf16", k=6, v=9, raw=True, bias=True, seed=2),
]


WHOLE = Options(b=1, t=9, io="bf16", k=32, v=96, g=1, h=2)
"""No tile has channels that are outside; the last run has one tile."""


def filled(o: Options) -> delta_solve.Solved:
    """What lies between the launches, NaN before."""
    solved = delta_solve.scratch(o.b, o.h, torch.empty(0).device)
    solved.parts.fill_(float("nan"))
    solved.factors.fill_(float("nan"))
    return solved


def two(module: ModuleType, o: Options) -> Any:
    return partial(module.delta_chunked, two_launches=True, solved=filled(o))


@pytest.mark.parametrize("o", COVER, ids=str)
def test_output_and_state_lie_within_the_bound_and_nothing_else_is_written(o: Options) -> None:
    check_bound(two(delta_chunked, o), o, order="chunked")


@pytest.mark.parametrize("o", [*COVER[:2], WHOLE], ids=str)
@pytest.mark.parametrize("tile", [(4, 2), (2, 4), (2, 2)])
def test_other_tiles_are_within_the_bound_too(o: Options, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_apply, "tile", lambda *_: tile)
    check_bound(two(delta_chunked, o), o, order="chunked")
    check_bytes(delta_chunked, o, True)


@pytest.mark.parametrize("o", [Options(t=7, io="bf16"), Options(t=4, io="bf16", state="bf16", k=40, v=70)], ids=str)
def test_integers_come_out_exactly(o: Options) -> None:
    check_exact(two(delta_chunked, o), o, order="chunked")


@pytest.mark.parametrize("t", [7, 16])
def test_the_last_token_has_weight_1_however_strong_the_decay(t: int) -> None:
    o = Options(t=t, io="bf16")
    check_last(two(delta_chunked, o), o)
    check_last(two(delta_chunked, o), o, dead=2)


@pytest.mark.parametrize("o", TREES, ids=str)
def test_every_node_of_a_tree_lies_within_the_bound(o: Options) -> None:
    trees.check(delta_tree.delta_tree, o, 0, two_launches=True, solved=filled(o))


def check_bytes(module: ModuleType, o: Options, write: bool) -> None:
    """The bytes of one launch, and those that lie between two: written once, read once at the least."""
    case, solved = cases.draw(o, padding=False), filled(o)
    between = {"parts": solved.parts, "factors": solved.factors}
    moved = module.traffic_bytes(o.b, o.t, o.g, o.h, o.k, o.v, **sizes_of(module, case), write_state=write)
    tokens = delta_solve.product_rows(o.t)

    def expected(seen: Memory) -> int:
        stored, loaded = ([of(name) for name in between] for of in (seen.stored, seen.loaded))
        assert sum(x.distinct for x in stored) == delta_solve.traffic_bytes(o.b, o.t, o.h)
        read = o.b * o.h * (3 * 2 * 2 * tokens**2 + 4 * (2 * tokens + (tokens + 1 if write else 0)))
        assert sum(x.distinct for x in loaded) == read
        assert all(x.requested == x.distinct for x in stored)
        return int(moved)

    run = partial(case.call, partial(module.delta_chunked, two_launches=True, solved=solved), write_state=write)
    check_moved(case, run, expected, 1, int(write), None, **between)


@pytest.mark.parametrize(
    "o", [Options(io="bf16", v=70), Options(t=9, io="bf16", state="bf16", k=64, v=64, g=1, h=2), WHOLE], ids=str
)
@pytest.mark.parametrize("write", [True, False])
def test_bytes_equal_the_formula_and_the_state_is_read_once(o: Options, write: bool) -> None:
    check_bytes(delta_chunked, o, write)


def test_heads_beyond_2_to_the_31_elements_are_read_and_written() -> None:
    o = Options(b=1, t=2, g=1, h=3, k=6, v=9, io="bf16", state="bf16", spare=0)
    check_far_heads(two(delta_chunked, o), o)


def check_padding(module: ModuleType) -> None:
    o = Options(io="bf16")
    case, solved = cases.draw(o), filled(o)
    case.call(partial(module.delta_chunked, two_launches=True, solved=solved))
    dead = [i for i in range(o.b) if i not in case.rows]
    assert dead
    assert solved.parts[dead].isnan().all()
    assert solved.factors[dead].isnan().all()


def test_nothing_is_solved_for_rows_of_padding() -> None:
    check_padding(delta_chunked)


@pytest.mark.parametrize(("programs", "expected"), [(127, False), (128, True)])
def test_many_heads_of_rows_take_two_launches(programs: int, expected: bool) -> None:
    assert delta_chunked.two_are_faster(torch.empty(0), programs) is expected


@pytest.mark.parametrize(
    ("heads", "tokens", "write", "expected"),
    [
        (4096, 8, True, (2, 1)), (511, 9, True, (2, 1)), (512, 9, True, (2, 2)), (2047, 9, True, (2, 2)),
        (2048, 9, True, (4, 2)), (4096, 8, False, (2, 1)), (2047, 9, False, (2, 1)), (2048, 9, False, (2, 2)),
    ],
)  # fmt: skip
def test_tiles_follow_heads_and_tokens(heads: int, tokens: int, write: bool, expected: tuple[int, int]) -> None:
    assert delta_apply.tile(heads, tokens, write) == expected


@pytest.mark.parametrize(
    ("capability", "tokens", "write", "expected"),
    [((9, 0), 8, True, 128), ((9, 0), 9, True, None), ((9, 0), 8, False, None), ((10, 0), 8, True, None)],
)
def test_registers_are_limited_where_it_was_measured(
    capability: tuple[int, int], tokens: int, write: bool, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    on_device: Any = SimpleNamespace(is_cuda=True, device=None)
    assert delta_apply.registers(on_device, tokens, write) == expected
    assert delta_apply.registers(torch.empty(0, device="cpu"), tokens, write) is None


def check_heads_apart(module: ModuleType) -> None:
    """Heads 0 and 1 are solved by one program, and 2 and 3; what is no number in 1 and 2 stays there."""
    o = Options(b=2, spare=0, t=5, g=4, h=4, io="bf16", seed=12)
    found = []
    for heads in ([], [1, 2]):
        case = cases.draw(o, padding=False)
        for x in (case.q, case.k, case.v, case.g, case.beta):
            x[:, :, heads] = float("nan")
        case.call(two(module, o))
        found.append([case.out[:, :, [0, 3]], case.S[:, [0, 3]], case.out[:, :, [1, 2]]])
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert found[1][2].isnan().all()


def test_a_head_that_is_not_finite_reaches_no_other() -> None:
    check_heads_apart(delta_chunked)


def check_all(module: ModuleType) -> None:
    for o in COVER:
        check_bound(two(module, o), o, order="chunked")
    check_last(two(module, Options(t=7, io="bf16")), Options(t=7, io="bf16"))
    check_bytes(module, Options(io="bf16", v=70, g=1, h=3), True)
    sys.modules[module.launch_apply.__module__].tile = lambda *_: (2, 2)  # type: ignore[attr-defined]
    check_bytes(module, WHOLE, True)
    check_bound(two(module, WHOLE), WHOLE, order="chunked")
    check_padding(module)
    check_heads_apart(module)


FAULTS = [
    ("if slot >= 0:", "if slot > 0:", "_delta_solve_kernel"),
    ("if slot >= 0:", "if slot != -2:", "_delta_solve_kernel"),
    ("there, own = (t < T)", "there, own = (t <= T)", "_delta_solve_kernel"),
    ("of_k = real[:, None] & (i < K)[None, :]", "of_k = real[:, None] & (i <= K)[None, :]", "_of_chain"),
    ("to_q, to_k = dot_inputs(q_t, tl.trans(k_t))", "to_q, to_k = dot_inputs(k_t, tl.trans(q_t))", "_of_chain"),
    ("(t < T) & (h < HEADS)", "(t < T)", "_delta_solve_kernel"),
    ("own & (t[None, :] <= t[:, None])", "t[None, :] <= t[:, None]", "_of_chain"),
    ("tl.where(own, column[:, None] * line[None, :], 0.0)", "column[:, None] * line[None, :]", "_solve"),
    ("own & (t == T - 1)[None, :]", "(t == T - 1)[None, :]", "_delta_solve_kernel"),
    ("tl.load(A + h, mask", "tl.load(A + h // 2 * 2, mask", "_of_chain"),
    ("kept = own & (h < HEADS)", "kept = own | (h < HEADS)", "_delta_solve_kernel"),
    ("g_t = tl.where(real, g_t, 0.0)", "pass", "_of_chain"),
    ("tl.where(sees & ~same, to_k", "tl.where(sees, to_k", "_solve"),
    ("tl.where(sees & ~same, to_k * weight * (r_k * beta_t)[:, None], 0.0)",
     "tl.where(same, 0.0, to_k * weight * (r_k * beta_t)[:, None])", "_solve"),
    ("tl.where(sees, to_q * (weight * r_q[:, None]), 0.0)", "to_q * (weight * r_q[:, None])", "_solve"),
    ("weight * (r_k * beta_t)[:, None]", "weight * beta_t[:, None]", "_solve"),
    ("M = tl.where(same, beta_t[None, :], 0.0)", "M = tl.where(same, 1.0, 0.0)", "_solve"),
    ("for s in tl.static_range(T - 1):", "for s in tl.static_range(T - 2):", "_solve"),
    ("dot_both(to_q, M, True)", "dot_both(to_q, M, True, True)", "_delta_solve_kernel"),
    ("tl.store(at + PART, mid,", "tl.store(at + PART, lo,", "store_parts"),
    ("r_q * tl.exp(G),", "r_q,", "_delta_solve_kernel"),
    ("group = there, h // HEADS_PER_KEY", "group = there, h % HEADS_PER_KEY", "_of_chain"),
    ("if slot < 0:", "if slot <= 0:", "_delta_apply_kernel"),
    ("if slot < 0:", "if slot == -2:", "_delta_apply_kernel"),
    ("real_x, real_y, of_v = t_x < T,", "real_x, real_y, of_v = t_x <= T,", "_real"),
    ("(t_y < T) & key_y", "(t_y <= T) & key_y", "_real"),
    ("(t_v % BLOCK_T < T)\n", "(t_v % BLOCK_T <= T)\n", "_real"),
    ("(h // HEADS_PER_KEY) * stride_q.g", "(h % HEADS_PER_KEY) * stride_q.g", "_delta_apply_kernel"),
    ("(h // HEADS_PER_KEY) * stride_k.g", "(h % HEADS_PER_KEY) * stride_k.g", "_delta_apply_kernel"),
    ("row = tl.where(is_key, LONGEST, 0)", "row = tl.where(is_key, 0, LONGEST)", "_load_solved"),
    ("Y *= read", "Y *= 1.0", "_outputs"),
    ("split3(v_j - Y_k)", "split3(v_j)", "_outputs"),
    ("acc=acc, out_dtype=tl.float32)\n    acc = tl.dot(mid, y, acc=acc", "acc=acc", "dot_cut_onto"),
    ("    acc = tl.dot(mid, y_hi, acc=acc, out_dtype=tl.float32)\n", "", "dot_cut"),
    ("return o_t + of_q, U", "return of_q, U", "_outputs"),
    ("mask=(t_v < T) & (j + j_v < V))  # (2)", "mask=(t_v <= T) & (j + j_v < V))  # (2)", "_delta_apply_kernel"),
    ("mask=(t_v < T) & (j + j_v < V))  # (2)", "mask=(t_v < T) & (j + j_v <= V))  # (2)", "_delta_apply_kernel"),
    ("split3(U * to)", "split3(U)", "_write_tile"),
    ("dot_cut_onto(left * _to_product", "dot_cut_onto(_to_product", "_write_tile"),
    ("tl.store(at, tile, mask=(part * PART + at_i < K) & (j + at_j < V))", "tl.store(at, tile, mask=j + at_j < V)",
     "_write_tile"),
    ("at_S, at_v, j + BLOCK_V,", "at_S, at_v, j,", "_delta_apply_kernel"),
    ("(RUN > 1) & (index + 1 < first + RUN) & ", "(RUN > 1) & (index < first) & ", "_delta_apply_kernel"),
    ("(RUN > 1) & (index + 1 < first + RUN) & ", "", "_delta_apply_kernel"),
    (" & (index + 1 < TILES)", "", "_delta_apply_kernel"),
    ("tl.minimum(first + RUN, TILES)", "first + RUN", "_delta_apply_kernel"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[f"{at} {new}" for _, new, at in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str) -> None:
    assert rejected(mutated(delta_chunked, old, new, at=at), check_all)


OF_TREES = [
    ("t[:, None] * stride_anc.t + t[None, :] * stride_anc.j", "t[:, None] * stride_anc.j + t[None, :] * stride_anc.t"),
    ("t[:, None] * stride_anc.t + t[None, :] * stride_anc.j", "t[:, None] * 0 + t[None, :] * 0"),
    ("real_y[:, None] & (i < K)[None, :]", "real_y[:, None] & (i <= K)[None, :]"),
    ("y % BLOCK_T // EACH).to", "y // EACH % 2).to"),
    ("is_key, t_y = y >= BLOCK_T", "is_key, t_y = y > BLOCK_T"),
    ("of_q, to_q, to_k = quarters", "to_q, of_q, to_k = quarters"),
    ("tl.load(A + h_1, mask", "tl.load(A + h_1 // 2 * 2, mask"),
    ("stride_bias_h, mask=there_1", "stride_bias_h, mask=t_1 < 0"),
    ("(tl.int64) // HEADS_PER_KEY", "(tl.int64) % HEADS_PER_KEY"),
    ("sees = (seen != 0) & real", "sees = (seen == 0) & real"),
]


@pytest.mark.parametrize(("old", "new"), OF_TREES, ids=[new for _, new in OF_TREES])
def test_planted_fault_of_trees_is_caught(old: str, new: str) -> None:
    mutant = mutated(delta_tree, old, new, at="_of_tree")
    assert caught(mutant, lambda m, o: trees.check(m.delta_tree, o, 0, two_launches=True, solved=filled(o)), TREES)


ODD = [
    Options(b=2, spare=0, t=1, g=1, h=1, io="bf16", seed=21),
    Options(b=2, spare=0, t=8, g=1, h=5, k=17, v=9, io="bf16", raw=True, bias=True, live=True, seed=24),
    Options(b=2, spare=0, t=7, g=3, h=3, io="bf16", raw=True, bias=True, seed=23),
]
"""Numbers of heads of which the last has a program of two to itself."""


def check_odd(module: ModuleType, o: Options) -> None:
    """Within the bound, and nothing is read or written for a head that is not there, where NaN lies."""
    case, room = cases.draw(o, padding=False), filled(replace(o, b=o.b + 1))
    solved = delta_solve.Solved(room.parts[: o.b], room.factors[: o.b])
    gates = {"A", "dt_bias"} & set(case.extra)
    for name in gates:
        case.extra[name] = torch.cat([case.extra[name], torch.full((1,), float("nan"))])[: o.h]
    with watch(**case.tensors, **case.extra, slots=case.slots, parts=solved.parts, factors=solved.factors) as seen:
        case.call(partial(module.delta_chunked, two_launches=True, solved=solved))
    assert seen.outside == seen.races == []
    assert all(seen.loaded(name).distinct == 4 * o.h for name in gates)
    check_bound(two(module, o), o, order="chunked")


@pytest.mark.parametrize("o", ODD, ids=str)
def test_a_head_without_another_beside_it_is_solved_alone(o: Options) -> None:
    check_odd(delta_chunked, o)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tl.load(A + h, mask=h < HEADS", "tl.load(A + h, mask=h <= HEADS"),
        ("stride_bias_h, mask=h < HEADS", "stride_bias_h, mask=h <= HEADS"),
        ("kept = own & (h < HEADS)", "kept = own & (h <= HEADS)"),
        ("r_q * tl.exp(G), mask=h < HEADS", "r_q * tl.exp(G), mask=h <= HEADS"),
    ],
)
def test_a_planted_head_that_is_not_there_is_caught(old: str, new: str) -> None:
    assert caught(mutated(delta_chunked, old, new), check_odd, ODD)


@pytest.mark.parametrize(("t", "h"), [(8, 1), (2, 5)])
def test_every_node_of_a_tree_lies_within_the_bound_of_an_odd_number_of_heads(t: int, h: int) -> None:
    o = Options(t=t, g=1, h=h, io="bf16", k=6, v=9, seed=t)
    trees.check(delta_tree.delta_tree, o, 0, two_launches=True, solved=filled(o))
