"""The scan of Kimi Delta Attention: within the oracle's bound, exactly, in its bytes, and what it must not touch."""

from types import ModuleType
from typing import Any

import pytest
import torch

from ssmspec_kernels.kda import kda_scan as kernel
from tests.kernels import delta_cases as cases
from tests.kernels.delta_cases import Options
from tests.kernels.delta_checks import check_bound, check_bytes, check_exact, check_last, check_steep
from tests.kernels.mutants import mutated


def options(**changes: Any) -> Options:
    return Options(**{"channel": True, **changes})


COVER = [
    options(),
    options(poison=7.0, raw=True, bias=True, lower=-5.0, io="bf16"),
    options(t=1, io="bf16", state="bf16", h=2, seed=1),
    options(t=5, io="bf16", gentle=True, k=17, v=33, seed=2, poison=3.0),
    options(t=4, live=True, io="fp16", state="fp16", l2_norm=False, scale=0.7, seed=3),
    options(t=2, raw=True, bias=True, io="bf16", live=True, gentle=True, k=32, v=16, seed=5),
    options(t=3, raw=True, lower=-0.5, live=True, state="fp16", g=3, h=6, seed=6),
    options(t=2, raw=True, live=True, k=9, v=18, seed=7),
    options(b=1, t=32, gentle=True, g=1, h=2, k=8, v=4, seed=8),
    options(t=3, strong=True, g=4, seed=9),
]


def check_single_steps(module: ModuleType, o: Options) -> None:
    """With the state in fp32 a window is its tokens one by one, bit for bit."""
    whole, single = cases.draw(o), cases.draw(o)
    whole.call(module.kda_scan, fused=False)
    for t in range(o.t):
        named = single.extra | {"live": single.extra["live"][:, t : t + 1]} if o.live else single.extra
        token = [getattr(single, x)[:, t : t + 1] for x in ("q", "k", "v", "g", "beta")]
        how: dict[str, Any] = {"l2_norm": o.l2_norm, "scale": o.scale, "out": single.out[:, t : t + 1], "fused": False}
        module.kda_scan(single.S, *token, slots=single.slots, **how, **named)
    assert cases.untouched(cases.whole(whole.S), cases.whole(single.S))
    assert cases.untouched(cases.whole(whole.out), cases.whole(single.out))


@pytest.mark.parametrize("o", COVER, ids=str)
def test_output_and_state_lie_within_the_bound_and_nothing_else_is_written(o: Options) -> None:
    check_bound(kernel.kda_scan, o)


@pytest.mark.parametrize("o", [options(t=7), options(t=4, io="bf16", state="bf16"), options(io="fp16")], ids=str)
def test_integers_come_out_exactly(o: Options) -> None:
    check_exact(kernel.kda_scan, o)


@pytest.mark.parametrize("o", [options(t=5, live=True), options(t=4, io="bf16", raw=True, lower=-5.0, gentle=True)], ids=str)
def test_a_window_is_its_tokens_one_by_one_bit_for_bit(o: Options) -> None:
    check_single_steps(kernel, o)


@pytest.mark.parametrize("o", [options(t=4, live=True), options(t=4, live=True, lower=-5.0)], ids=str)
def test_a_no_op_has_no_gate_however_steep_its_projection_would_be(o: Options) -> None:
    check_steep(kernel.kda_scan, o)


def test_under_decays_that_leave_nothing_the_state_is_what_the_last_token_wrote() -> None:
    check_last(kernel.kda_scan, options(t=5))
    check_last(kernel.kda_scan, options(t=5), dead=2)


def test_a_window_of_no_ops_leaves_the_state_bit_for_bit() -> None:
    case = cases.draw(options(t=3, live=True, gentle=True), padding=False)
    case.extra["live"].zero_()
    before = cases.whole(case.S).clone()
    case.call(kernel.kda_scan)
    assert cases.untouched(before, cases.whole(case.S))


def test_without_the_final_state_the_output_is_the_same_and_rows_may_share_one() -> None:
    case, other = cases.draw(options(t=4), padding=False), cases.draw(options(t=4), padding=False)
    before = cases.whole(case.S).clone()
    case.call(kernel.kda_scan, write_state=False, fused=False)
    assert cases.untouched(before, cases.whole(case.S))
    other.call(kernel.kda_scan, fused=False)
    assert torch.equal(case.out, other.out)
    shared = cases.draw(options(t=4), padding=False)
    shared.slots.fill_(int(shared.slots[0]))
    assert torch.isfinite(shared.call(kernel.kda_scan, write_state=False)).all()


@pytest.mark.parametrize("tiles", [(8, 16, 1), (4, 32, 2), (8, 64, 4)])
def test_other_tiles_lie_within_the_bound(tiles: tuple[int, int, int]) -> None:
    check_bound(lambda **given: kernel.kda_scan(**given, tiles=tiles), options(io="bf16", raw=True, bias=True, lower=-5.0))


@pytest.mark.parametrize("o", [options(t=1, io="bf16", state="bf16", v=16), options(t=5, io="bf16", k=17, g=1, h=2)], ids=str)
@pytest.mark.parametrize("write", [True, False])
def test_bytes_equal_the_formula_and_the_state_is_read_once(o: Options, write: bool) -> None:
    check_bytes(kernel, kernel.kda_scan, o, write)


def check_all(module: ModuleType) -> None:
    for o in (COVER[1], COVER[0], COVER[5], COVER[6], COVER[2]):
        check_bound(module.kda_scan, o)
    check_bytes(module, module.kda_scan, options(v=40), True)


FAULTS = [
    ("g = low * sigmoid(-decay * (g + bias))", "g = tl.maximum(decay * softplus(g + bias), low)", "kda_gates"),
    ("g = low * sigmoid(-decay * (g + bias))", "g = low * sigmoid(decay * (g + bias))", "kda_gates"),
    ("g = low * sigmoid(-decay * (g + bias))", "g = low * sigmoid(-decay * g)", "kda_gates"),
    ("g = decay * softplus(g + bias)", "g = decay * softplus(g)", "kda_gates"),
    ("g = decay * softplus(g + bias)", "g = low + decay * softplus(g + bias) * softplus(-low)", "kda_gates"),
    ("beta = sigmoid(beta)", "beta = sigmoid(beta).to(tl.bfloat16).to(tl.float32)", "kda_gates"),
    ("        BOUNDED=lower_bound is not None", "        BOUNDED=False", None),
    ("in_k = (i < K) |", "in_k = (i < K - 1) |", None),
    ("in_v = (j < V) |", "in_v = (j <= V) |", None),
    ("((row < K) |", "((row <= K) |", None),
    ("if slot >= 0:", "if slot > 0:", None),
    ("if slot >= 0:", "if slot != -2:", None),
    ("h * stride.g.h + i", "h * stride.g.h + i // 2", None),
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
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all(mutant)


def test_planted_decay_of_the_mean_over_channels_is_caught() -> None:
    """The rule with a decay per head, of which every channel has the mean."""
    mean = "a = tl.exp(tl.zeros_like(g) + tl.sum(g, axis=0) / g.shape[0])"
    mutant = mutated(kernel, "a = tl.exp(tl.where(real, g, 0.0))", mean, at="advance")
    with pytest.raises(AssertionError):
        check_bound(mutant.kda_scan, options(k=16))
