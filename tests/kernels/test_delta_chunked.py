"""The delta rule's windows through matrix products: the demands on the scan, and its results within the bounds."""

from functools import partial
from types import ModuleType

import pytest
import torch

from ssmspec_kernels.delta import delta_chunked as kernel
from ssmspec_kernels.delta.delta_scan import delta_scan
from tests.kernels import delta_cases as cases
from tests.kernels.covers import rejected
from tests.kernels.delta_cases import Options
from tests.kernels.delta_checks import check_bound, check_bytes, check_exact, check_far_heads, check_last, check_steep
from tests.kernels.mutants import mutated

COVER = [
    Options(poison=7.0),
    Options(t=1, io="bf16", h=2, seed=1),
    Options(t=5, channel=True, io="bf16", gentle=True, k=17, v=33, seed=2, poison=3.0),
    Options(t=4, live=True, io="fp16", state="fp16", l2_norm=False, scale=0.7, seed=3),
    Options(t=17, io="bf16", state="bf16", g=1, h=3, v=5, seed=4),
    Options(t=3, raw=True, bias=True, io="bf16", live=True, gentle=True, k=32, v=16, seed=5),
    Options(t=3, raw=True, channel=True, bias=True, live=True, state="fp16", g=3, h=6, seed=6),
    Options(b=1, t=32, gentle=True, g=1, h=2, k=8, v=4, seed=8),
    Options(t=6, gentle=True, live=True, io="bf16", seed=9),
    Options(t=2, raw=True, channel=True, live=True, seed=10),
]


@pytest.mark.parametrize("o", COVER, ids=str)
def test_output_and_state_lie_within_the_bound_and_nothing_else_is_written(o: Options) -> None:
    check_bound(kernel.delta_chunked, o, order="chunked")


@pytest.mark.parametrize(
    "o", [Options(t=7, io="bf16"), Options(t=4, channel=True, state="bf16"), Options(io="fp16")], ids=str
)
def test_integers_come_out_exactly(o: Options) -> None:
    check_exact(kernel.delta_chunked, o, order="chunked")


@pytest.mark.parametrize("o", [COVER[0], COVER[4], COVER[6]], ids=str)
def test_the_window_is_the_scan_within_both_bounds(o: Options) -> None:
    solved, scanned = cases.draw(o), cases.draw(o)
    bounds = solved.bound(order="chunked"), scanned.bound()
    solved.call(kernel.delta_chunked)
    scanned.call(delta_scan)
    named = solved.slots.numpy()[solved.rows]
    for x, rows, i in (("out", solved.rows, 0), ("S", named, 1)):
        apart = cases.doubles(getattr(solved, x))[rows] - cases.doubles(getattr(scanned, x))[rows]
        assert (abs(apart) <= bounds[0][i].error + bounds[1][i].error).all()


LAST = [Options(t=29, io="bf16"), Options(t=7), Options(t=30, channel=True)]


@pytest.mark.parametrize("o", LAST, ids=str)
def test_the_last_token_has_weight_1_however_strong_the_decay(o: Options) -> None:
    check_last(kernel.delta_chunked, o)
    check_last(kernel.delta_chunked, o, dead=2)


STEEP = [Options(t=3), Options(t=5, io="bf16", live=True), Options(t=3, channel=True)]


@pytest.mark.parametrize("o", STEEP, ids=str)
def test_tokens_that_are_not_there_decay_nothing_however_large_the_bias(o: Options) -> None:
    check_steep(kernel.delta_chunked, o, order="chunked")


def check_tiles(module: ModuleType) -> None:
    """A program takes several tiles of channels, of which the last may lie partly outside."""
    for wide, v in ((2, 40), (4, 70)):
        tiled = partial(module.delta_chunked, tiles=(wide, 32 * wide, 2))
        check_bound(tiled, Options(t=4, io="bf16", v=v, seed=11, poison=7.0), order="chunked")


def test_a_program_of_several_tiles_lies_within_the_bound_and_writes_nothing_else() -> None:
    check_tiles(kernel)


@pytest.mark.parametrize("channel", [False, True])
def test_gates_in_bf16_are_taken_as_the_fp32_numbers_that_they_are(channel: bool) -> None:
    o = Options(t=7, io="bf16", channel=channel, k=6, v=9, seed=2)
    narrow, wide = cases.draw(o), cases.draw(o)
    narrow.g, narrow.beta = narrow.g.bfloat16(), narrow.beta.bfloat16()
    wide.g, wide.beta = narrow.g.float(), narrow.beta.float()
    for case in (narrow, wide):
        case.call(kernel.delta_chunked)
    assert torch.equal(narrow.out[narrow.rows], wide.out[wide.rows])
    named = narrow.slots[narrow.slots >= 0].long()
    assert torch.equal(narrow.S[named], wide.S[named])


def test_heads_beyond_2_to_the_31_elements_are_read_and_written() -> None:
    o = Options(b=1, t=2, g=1, h=3, k=6, v=9, state="bf16", spare=0)
    check_far_heads(kernel.delta_chunked, o)


def test_fp32_is_kept_with_bf16_activations() -> None:
    """An fp32 operand rounded to bf16 before a product would cost 2^-9; the state is accurate to fp32."""
    o = Options(t=6, io="bf16", k=32, v=32)
    case = cases.draw(o)
    _, S = case.bound(order="chunked")
    case.call(kernel.delta_chunked)
    found = cases.doubles(case.S)[case.slots.numpy()[case.rows]]
    assert abs(found - S.value).max() <= 2.0**-20 * abs(S.value).max()


@pytest.mark.parametrize(
    "o",
    [Options(v=40), Options(t=1, io="bf16", state="bf16", v=16), Options(t=5, channel=True, io="bf16", k=17, g=1, h=2)],
    ids=str,
)
@pytest.mark.parametrize("write", [True, False])
def test_bytes_equal_the_formula_and_the_state_is_read_once(o: Options, write: bool) -> None:
    check_bytes(kernel, kernel.delta_chunked, o, write)


def check_all(module: ModuleType) -> None:
    for i in (0, 1, 5, 6, 8, 2):
        check_bound(module.delta_chunked, COVER[i], order="chunked")
    check_bytes(module, module.delta_chunked, Options(v=40), True)
    for o in LAST:
        check_last(module.delta_chunked, o)
    for o in STEEP:
        check_steep(module.delta_chunked, o, order="chunked")
    check_tiles(module)


FAULTS = [
    ("(j + at < V), other=0.0)", "(j + at <= V), other=0.0)", None),
    ("(t < T)[:, None, None] & (j + at < V)", "(t < T)[:, None, None] & (j + at <= V)", None),
    ("(t < T)[:, None, None] & (j + at < V)", "(t <= T)[:, None, None] & (j + at < V)", None),
    ("TILES + one) * BLOCK_V", "TILES - one) * BLOCK_V", None),
    ("if slot >= 0:", "if slot > 0:", None),
    ("if slot >= 0:", "if slot != -2:", None),
    ("(h // HEADS_PER_KEY) * stride.k.g", "(h % HEADS_PER_KEY) * stride.k.g", None),
    ("coupling = tl.where(same, 0.0, to_k)", "coupling = tl.where(same, to_k, to_k)", None),
    ("sees = (t[:, None] >= t[None, :])", "sees = (t[:, None] > t[None, :])", None),
    ("tl.where(same, beta_t[None, :], 0.0), T)", "tl.where(same, 1.0, 0.0), T)", None),
    ("gs += (tl.where(of_k, g_t, 0.0),)", "gs += (g_t,)", None),
    ("g_t = tl.where(real, g_t, 0.0)", "pass", None),
    ("            if WRITE_STATE:", "            if not WRITE_STATE:", None),
    ("(r_k * tl.exp(total - G))[None, :]", "(r_k * tl.exp(total))[None, :]", None),
    ("from_q, from_k = (r_q * tl.exp(G))[None, :]", "from_q, from_k = (r_q + 0.0 * tl.exp(G))[None, :]", None),
    ("tl.where(sees, G[:, None] - G[None, :]", "tl.where(sees, G[None, :] - G[:, None]", None),
    ("to_q *= weight * r_q[:, None]", "to_q *= weight * r_k[:, None]", None),
    ("R = rows(v_t, WIDE).to(tl.float32) - read", "R = rows(v_t, WIDE).to(tl.float32) + read", None),
    ("tile = tl.exp(total) * tiles[part] + dot_both(U, kept, SPLIT)", "tile = tiles[part] + dot_both(U, kept, SPLIT)", None),
    ("(at_k < K) & (at_v < V), other=0.0", "(at_k <= K) & (at_v < V), other=0.0", "load_state"),
    ("element_ty), mask=(at_k < K)", "element_ty), mask=(at_k <= K)",
     "store_state"),
    ("        a = tl.dot(mid, x, acc=a, out_dtype=tl.float32)\n", "        pass\n", "add_dots"),
    ("        b = tl.dot(lo, y, acc=b, out_dtype=tl.float32)\n", "        pass\n", "add_dots"),
    ("total = last(G, newest)", "total = tl.sum(g_t, axis=0)", None),
    ("newest = T - 1", "newest = T - 2", None),
    ("newest = tl.max(tl.where(real, t, -1), axis=0)", "newest = tl.max(tl.where(real, t, 0), axis=0) - 1", None),
    ("tl.where(is_last[:, None], G, 0.0)", "tl.where(is_last[:, None], 0.0, 0.0)", "last"),
    ("for i in range(T - 1):", "for i in range(T - 2):", "substituted"),
    ("R -= column[:, None]", "R += column[:, None]", "substituted"),
    ("weight = tl.exp(tl.where(seen[:, None], G - at_key[None, :], float(\"-inf\")))",
     "weight = tl.where(seen[:, None], 1.0, 0.0)", "scores"),
    ("acc = tl.dot(mid, y_hi, acc=acc, out_dtype=tl.float32)", "pass", "dot_cut"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    assert rejected(mutated(kernel, old, new, at=at), check_all)
