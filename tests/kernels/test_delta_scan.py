"""The delta rule's scan: against the oracle within its bound, exactly, in its bytes, and what it must not touch."""

from types import ModuleType

import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.delta import delta_scan as kernel
from tests.kernels import delta_cases as cases
from tests.kernels.delta_cases import Options
from tests.kernels.delta_checks import check_bound, check_bytes, check_exact
from tests.kernels.mutants import mutated

COVER = [
    Options(),
    Options(poison=7.0),
    Options(t=1, io="bf16", state="bf16", h=2, seed=1),
    Options(t=5, channel=True, io="bf16", gentle=True, k=17, v=33, seed=2, poison=3.0),
    Options(t=4, live=True, io="fp16", state="fp16", l2_norm=False, scale=0.7, seed=3),
    Options(t=3, live=True, channel=True, state="bf16", g=1, h=3, v=5, seed=4),
    Options(t=2, raw=True, bias=True, io="bf16", live=True, gentle=True, k=32, v=16, seed=5),
    Options(t=3, raw=True, channel=True, bias=True, io="bf16", state="fp16", g=3, h=6, seed=6),
    Options(t=2, raw=True, live=True, state="fp32", k=9, v=18, seed=7),
    Options(b=1, t=32, gentle=True, g=1, h=2, k=8, v=4, seed=8),
    Options(t=6, gentle=True, live=True, scale=1.3, seed=9),
]


def check_single_steps(module: ModuleType, o: Options) -> None:
    """With the state in fp32 a window is its tokens one by one, bit for bit."""
    whole, single = cases.draw(o), cases.draw(o)
    whole.call(module.delta_scan, fused=False)
    for t in range(o.t):
        cut = slice(t, t + 1)
        named = {name: single.extra[name][:, cut] for name in ("live",) if name in single.extra} | {"fused": False}
        module.delta_scan(
            single.S, *(getattr(single, x)[:, cut] for x in ("q", "k", "v", "g", "beta")), slots=single.slots,
            out=single.out[:, cut], l2_norm=o.l2_norm, scale=o.scale, **{**single.extra, **named},
        )  # fmt: skip
    assert cases.untouched(whole.S, single.S)
    assert cases.untouched(whole.out, single.out)


@pytest.mark.parametrize("o", COVER, ids=str)
def test_output_and_state_lie_within_the_bound_and_nothing_else_is_written(o: Options) -> None:
    check_bound(kernel.delta_scan, o)


@pytest.mark.parametrize(
    "o", [Options(t=7), Options(t=4, channel=True, io="bf16", state="bf16"), Options(io="fp16")], ids=str
)
def test_integers_come_out_exactly(o: Options) -> None:
    check_exact(kernel.delta_scan, o)


@pytest.mark.parametrize(
    "o", [Options(t=5, live=True), Options(t=4, channel=True, io="bf16", raw=True, gentle=True)], ids=str
)
def test_a_window_is_its_tokens_one_by_one_bit_for_bit(o: Options) -> None:
    check_single_steps(kernel, o)


def test_a_window_of_no_ops_leaves_the_state_bit_for_bit_and_outputs_zero() -> None:
    case = cases.draw(Options(t=3, live=True, gentle=True), padding=False)
    case.extra["live"].zero_()
    before = cases.whole(case.S).clone()
    case.call(kernel.delta_scan)
    assert cases.untouched(before, cases.whole(case.S))


def test_without_the_final_state_the_output_is_the_same_and_rows_may_share_one() -> None:
    case, other = cases.draw(Options(t=4), padding=False), cases.draw(Options(t=4), padding=False)
    before = cases.whole(case.S).clone()
    case.call(kernel.delta_scan, write_state=False, fused=False)
    assert cases.untouched(before, cases.whole(case.S))
    other.call(kernel.delta_scan, fused=False)
    assert torch.equal(case.out, other.out)
    shared = cases.draw(Options(t=4), padding=False)
    shared.slots.fill_(int(shared.slots[0]))
    o = shared.call(kernel.delta_scan, write_state=False)
    assert torch.isfinite(o).all()


def test_one_token_is_asked_for_once() -> None:
    case = cases.draw(Options(b=1, t=1, g=1, h=1, v=9), padding=False)
    inputs = {name: getattr(case, name) for name in ("q", "k", "v", "g", "beta")}
    with watch(S=case.S, slots=case.slots, out=case.out, **inputs) as seen:
        case.call(kernel.delta_scan)
    assert all(seen.loaded(name).requested == seen.loaded(name).distinct == x.nbytes for name, x in inputs.items())


def test_rows_without_slots_have_their_own_number() -> None:
    case, other = cases.draw(Options(), padding=False), cases.draw(Options(), padding=False)
    case.slots.copy_(torch.arange(3))
    case.S[:3] = 1.0
    other.S[:3] = 1.0
    assert torch.equal(case.call(kernel.delta_scan, fused=False), other.call(kernel.delta_scan, fused=False, slots=None))


@pytest.mark.parametrize(
    "o",
    [Options(v=40), Options(t=1, io="bf16", state="bf16", v=16), Options(t=5, channel=True, io="bf16", k=17, g=1, h=2)],
    ids=str,
)
@pytest.mark.parametrize("write", [True, False])
def test_bytes_equal_the_formula_and_the_state_is_read_once(o: Options, write: bool) -> None:
    check_bytes(kernel, kernel.delta_scan, o, write)


def check_all(module: ModuleType) -> None:
    for o in (COVER[1], COVER[0], COVER[5], COVER[6], COVER[2]):
        check_bound(module.delta_scan, o)
    check_bytes(module, module.delta_scan, Options(v=40), True)


FAULTS = [
    ("in_k = (i < K) |", "in_k = (i < K - 1) |", None),
    ("in_k = (i < K) |", "in_k = (i <= K) |", None),
    ("in_v = (j < V) |", "in_v = (j <= V) |", None),
    ("((row < K) |", "((row <= K) |", None),
    ("if slot >= 0:", "if slot > 0:", None),
    ("if slot >= 0:", "if slot != -2:", None),
    ("(h // HEADS_PER_KEY) * stride.k.g", "(h % HEADS_PER_KEY) * stride.k.g", None),
    ("b * stride.q.b + ", "b * stride.k.t + ", None),
    ("            tl.store(at_S, ", "            tl.store(at_S + 1, ", None),
    ("if WRITE_STATE:\n", "if not WRITE_STATE:\n", None),
    ("tl.minimum(t + 1, T - 1)", "tl.minimum(t, T - 1)", None),
    ("tl.minimum(t + 1, T - 1)", "t + 1", None),
    ("tl.where(real, beta, 0.0) *", "beta *", "advance"),
    ("a = tl.exp(tl.where(real, g, 0.0))", "a = tl.exp(g)", "advance"),
    ("        state *= spread(a, LANES)[:, None]", "        state *= a[:, None]", "advance"),
    ("u[None, :], a * state)", "u[None, :], state)", "advance"),
    ("a * tl.sum(state * q[", "a * tl.sum(state * k[", "advance"),
    ("both = tl.sum(q * k, axis=0)", "both = tl.sum(q * q, axis=0)", "advance"),
    ("spread(q, LANES), spread(k, LANES)", "q, spread(k, LANES)", "advance"),
    ("r_q = scale * tl.rsqrt(", "r_q = tl.rsqrt(", "advance"),
    ("(v - a * r_k *", "(v + a * r_k *", "advance"),
    ("(v - a * r_k *", "(v - a *", "advance"),
    ("u = r_k * (tl.where", "u = 1.0 * (tl.where", "advance"),
    ("row % LANES * (BLOCK_K // LANES) + row // LANES", "row", "rows"),
    ("beta = sigmoid(beta)", "beta = sigmoid(beta).to(tl.bfloat16).to(tl.float32)", "gates"),
    ("g = decay * softplus(g + bias)", "g = decay * softplus(g)", "gates"),
    ("state = tl.load(at_S, mask=inside, other=0.0).to(tl.float32)",
     "state = tl.load(at_S, mask=inside, other=0.0).to(tl.bfloat16).to(tl.float32)", None),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all(mutant)


def test_planted_arithmetic_across_tokens_is_caught_by_single_steps() -> None:
    """A state rounded to bf16 between the tokens of a window: less than a bf16 output shows, but not the same bits."""
    mutant = mutated(kernel, "return o, tl.fma(k[:, None], u[None, :], a * state)",
                     "return o, tl.fma(k[:, None], u[None, :], a * state) * (1.0 + 2.0**-23)",
                     at="advance")  # fmt: skip
    check_single_steps(mutant, Options(t=3))
    with pytest.raises(AssertionError):
        check_exact(mutant.delta_scan, Options(t=7))
