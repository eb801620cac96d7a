"""The scans of the delta rule and of Kimi Delta Attention: bounds, exact cases, bytes, what they must not touch."""

from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.delta import delta_scan as kernel
from ssmspec_kernels.kda import kda_scan
from tests.kernels import delta_cases as cases
from tests.kernels.covers import covered, launcher, planted
from tests.kernels.delta_cases import Options
from tests.kernels.delta_checks import check_bound, check_bytes, check_exact, check_last, check_steep
from tests.kernels.mutants import caught, mutated

kda = partial(Options, channel=True)
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
KDA = [
    kda(),
    kda(poison=7.0, raw=True, bias=True, lower=-5.0, io="bf16"),
    kda(t=1, io="bf16", state="bf16", h=2, seed=1),
    kda(t=5, io="bf16", gentle=True, k=17, v=33, seed=2, poison=3.0),
    kda(t=4, live=True, io="fp16", state="fp16", l2_norm=False, scale=0.7, seed=3),
    kda(t=2, raw=True, bias=True, io="bf16", live=True, gentle=True, k=32, v=16, seed=5),
    kda(t=3, raw=True, lower=-0.5, live=True, state="fp16", g=3, h=6, seed=6),
    kda(t=2, raw=True, live=True, k=9, v=18, seed=7),
    kda(b=1, t=32, gentle=True, g=1, h=2, k=8, v=4, seed=8),
    kda(t=3, strong=True, g=4, seed=9),
]
BOTH = pytest.mark.parametrize("module", [kernel, kda_scan])


def of(module: ModuleType, **changes: Any) -> Options:
    """A case that a launcher takes."""
    return (kda if "kda" in module.__name__ else Options)(**changes)


def check_single_steps(module: ModuleType, o: Options) -> None:
    """With the state in fp32 a window is its tokens one by one, bit for bit."""
    whole, single = cases.draw(o), cases.draw(o)
    whole.call(launcher(module), fused=False)
    for t in range(o.t):
        cut = slice(t, t + 1)
        token = {name: x[:, cut] for name, x in single.tensors.items() if name != "S"}
        live = {name: x[:, cut] for name, x in single.extra.items() if name == "live"}
        single.call(launcher(module), **token, **live, fused=False)
    assert cases.untouched(cases.whole(whole.S), cases.whole(single.S))
    assert cases.untouched(cases.whole(whole.out), cases.whole(single.out))


@pytest.mark.parametrize(("module", "o"), covered({kernel: COVER, kda_scan: KDA}))
def test_output_and_state_lie_within_the_bound_and_nothing_else_is_written(module: ModuleType, o: Options) -> None:
    check_bound(launcher(module), o)


EXACT = {
    kernel: [Options(t=7), Options(t=4, channel=True, io="bf16", state="bf16"), Options(io="fp16")],
    kda_scan: [kda(t=7), kda(t=4, io="bf16", state="bf16"), kda(io="fp16")],
}


@pytest.mark.parametrize(("module", "o"), covered(EXACT))
def test_integers_come_out_exactly(module: ModuleType, o: Options) -> None:
    check_exact(launcher(module), o)


SINGLE = {
    kernel: [Options(t=5, live=True), Options(t=4, channel=True, io="bf16", raw=True, gentle=True)],
    kda_scan: [kda(t=5, live=True), kda(t=4, io="bf16", raw=True, lower=-5.0, gentle=True)],
}


@pytest.mark.parametrize(("module", "o"), covered(SINGLE))
def test_a_window_is_its_tokens_one_by_one_bit_for_bit(module: ModuleType, o: Options) -> None:
    check_single_steps(module, o)


@pytest.mark.parametrize(
    ("module", "o"),
    covered({kernel: [Options(t=4, live=True)], kda_scan: [kda(t=4, live=True), kda(t=4, live=True, lower=-5.0)]}),
)
def test_a_no_op_has_no_gate_however_steep_its_projection_would_be(module: ModuleType, o: Options) -> None:
    check_steep(launcher(module), o)


@pytest.mark.parametrize("dead", [0, 2])
@BOTH
def test_under_decays_that_leave_nothing_the_state_is_what_the_last_token_wrote(module: ModuleType, dead: int) -> None:
    check_last(launcher(module), of(module, t=5), dead)


@BOTH
def test_a_window_of_no_ops_leaves_the_state_bit_for_bit_and_outputs_zero(module: ModuleType) -> None:
    case = cases.draw(of(module, t=3, live=True, gentle=True), padding=False)
    case.extra["live"].zero_()
    before = cases.whole(case.S).clone()
    assert not case.call(launcher(module)).any()
    assert cases.untouched(before, cases.whole(case.S))


@BOTH
def test_without_the_final_state_the_output_is_the_same_and_rows_may_share_one(module: ModuleType) -> None:
    case, other, shared = (cases.draw(of(module, t=4), padding=False) for _ in range(3))
    before = cases.whole(case.S).clone()
    case.call(launcher(module), write_state=False, fused=False)
    assert cases.untouched(before, cases.whole(case.S))
    other.call(launcher(module), fused=False)
    assert torch.equal(case.out, other.out)
    shared.slots.fill_(int(shared.slots[0]))
    assert torch.isfinite(shared.call(launcher(module), write_state=False)).all()


@BOTH
def test_one_token_is_asked_for_once(module: ModuleType) -> None:
    case = cases.draw(of(module, b=1, t=1, g=1, h=1, v=9), padding=False)
    inputs = {name: getattr(case, name) for name in ("q", "k", "v", "g", "beta")}
    with watch(S=case.S, slots=case.slots, out=case.out, **inputs) as seen:
        case.call(launcher(module))
    assert all(seen.loaded(name).requested == seen.loaded(name).distinct == x.nbytes for name, x in inputs.items())


@BOTH
def test_rows_without_slots_have_their_own_number(module: ModuleType) -> None:
    case, other = cases.draw(of(module), padding=False), cases.draw(of(module), padding=False)
    case.slots.copy_(torch.arange(3))
    case.S[:3] = other.S[:3] = 1.0
    found = [x.call(launcher(module), fused=False, **named) for x, named in ((case, {}), (other, {"slots": None}))]
    assert torch.equal(*found)


@pytest.mark.parametrize("tiles", [(8, 16, 1), (4, 32, 2), (8, 64, 4)])
@BOTH
def test_other_tiles_lie_within_the_bound(module: ModuleType, tiles: tuple[int, int, int]) -> None:
    lower = -5.0 if module is kda_scan else None
    check_bound(partial(launcher(module), tiles=tiles), of(module, io="bf16", raw=True, bias=True, lower=lower))


BYTES = {
    kernel: [
        Options(v=40),
        Options(t=1, io="bf16", state="bf16", v=16),
        Options(t=5, channel=True, io="bf16", k=17, g=1, h=2),
    ],
    kda_scan: [kda(t=1, io="bf16", state="bf16", v=16), kda(t=5, io="bf16", k=17, g=1, h=2)],
}


@pytest.mark.parametrize(("module", "o"), covered(BYTES))
@pytest.mark.parametrize("write", [True, False])
def test_bytes_equal_the_formula_and_the_state_is_read_once(module: ModuleType, o: Options, write: bool) -> None:
    check_bytes(module, launcher(module), o, write)


def check_all(module: ModuleType, cover: list[Options]) -> None:
    for o in cover:
        check_bound(launcher(module), o)
    check_bytes(module, launcher(module), of(module, v=40), True)


FAULTS: dict[ModuleType, list[tuple[str, str, str | None]]] = {
    kernel: [
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
    ],
    kda_scan: [
        ("g = low * sigmoid(-decay * (g + bias))", "g = tl.maximum(decay * softplus(g + bias), low)", "gates"),
        ("g = low * sigmoid(-decay * (g + bias))", "g = low * sigmoid(decay * (g + bias))", "gates"),
        ("g = low * sigmoid(-decay * (g + bias))", "g = low * sigmoid(-decay * g)", "gates"),
        ("g = decay * softplus(g + bias)", "g = decay * softplus(g)", "gates"),
        ("g = decay * softplus(g + bias)", "g = low + decay * softplus(g + bias) * softplus(-low)", "gates"),
        ("beta = sigmoid(beta)", "beta = sigmoid(beta).to(tl.bfloat16).to(tl.float32)", "gates"),
        ("BOUNDED=lower_bound is not None", "BOUNDED=False", None),
        ("in_k = (i < K) |", "in_k = (i < K - 1) |", None),
        ("in_v = (j < V) |", "in_v = (j <= V) |", None),
        ("((row < K) |", "((row <= K) |", None),
        ("if slot >= 0:", "if slot > 0:", None),
        ("if slot >= 0:", "if slot != -2:", None),
        ("at_g += i", "at_g += i // 2", None),
        ("(h // HEADS_PER_KEY) * stride.k.g", "(h % HEADS_PER_KEY) * stride.k.g", None),
        ("            tl.store(at_S, ", "            tl.store(at_S + 1, ", None),
        ("if WRITE_STATE:\n", "if not WRITE_STATE:\n", None),
        ("tl.minimum(t + 1, T - 1)", "tl.minimum(t, T - 1)", None),
        ("a = tl.exp(tl.where(real, g, 0.0))", "a = tl.exp(g)", "advance"),
        ("        state *= spread(a, LANES)[:, None]", "        state *= a[:, None]", "advance"),
        ("spread(q, LANES), spread(k, LANES)", "q, spread(k, LANES)", "advance"),
        ("(v - a * r_k *", "(v + a * r_k *", "advance"),
        ("state = tl.load(at_S, mask=inside, other=0.0).to(tl.float32)",
         "state = tl.load(at_S, mask=inside, other=0.0).to(tl.bfloat16).to(tl.float32)", None),
        ("a = tl.exp(tl.where(real, g, 0.0))", "a = tl.exp(tl.zeros_like(g) + tl.sum(g, axis=0) / g.shape[0])", "advance"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("module", "old", "new", "at"), planted(FAULTS))
def test_planted_fault_is_caught(module: ModuleType, old: str, new: str, at: str | None) -> None:
    """The last of them is the rule with a decay per head, of which every channel has the mean."""
    cover = [KDA[i] for i in (1, 0, 5, 6, 2)] if module is kda_scan else [COVER[i] for i in (1, 0, 5, 6, 2)]
    assert caught(mutated(module, old, new, at=at), check_all, [cover])


def test_planted_arithmetic_across_tokens_is_caught_by_single_steps() -> None:
    """A state rounded to bf16 between the tokens of a window: less than a bf16 output shows, but not the same bits."""
    right = "return o, tl.fma(k[:, None], u[None, :], a * state)"
    mutant = mutated(kernel, right, f"{right} * (1.0 + 2.0**-23)", at="advance")
    check_single_steps(mutant, Options(t=3))
    with pytest.raises(AssertionError):
        check_exact(mutant.delta_scan, Options(t=7))
