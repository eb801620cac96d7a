"""Attention of packed prompts over a cache: against the oracle within the bound of the online softmax, and in its bytes."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance.interpreter.memory import watch
from ssmspec_kernels.attention import causal_attention as kernel
from ssmspec_kernels.contract import of_products
from ssmspec_ref import attention
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.attention import AttentionParams, KVState
from ssmspec_ref.shapes import Array
from tests.kernels import tensors
from tests.kernels.mutants import mutated
from tests.kernels.tensors import Kept, contract, doubles, strided

BLOCK = 16
BEFORE, BEHIND = 2, 3
"""Tokens of the run that no sequence owns."""


@dataclass(frozen=True)
class Options:
    """One case: tokens and committed slots of each sequence, sizes, storage type; the last sequence may be padding."""

    lengths: tuple[int, ...] = (5, 20, 0, 7)
    committed: tuple[int, ...] = (0, 9, 4, 18)
    h: int = 4
    g: int = 2
    e: int = 18
    io: str = "fp32"
    scale: float | None = None
    products: str = "fp32"
    descriptors: bool = False
    padding: bool = True
    size: float = 1.0
    seed: int = 0


@dataclass
class Case:
    options: Options
    q: Tensor
    K: Tensor
    V: Tensor
    length: Tensor
    slots: Tensor
    bounds: Tensor
    out: Tensor

    def call(self, module: ModuleType, **changes: Any) -> Tensor:
        named: dict[str, Any] = {name: getattr(self, name) for name in ("q", "K", "V", "length", "slots", "bounds", "out")}
        named |= {"scale": self.options.scale, "products": self.options.products, "block_t": BLOCK, "block_l": BLOCK}
        named |= {"descriptors": True} if self.options.descriptors else {}
        return module.causal_attention(**{**named, **changes})

    def rows(self) -> list[tuple[int, slice]]:
        """Slot and tokens of every sequence that has any and is no padding."""
        found = []
        for b, slot in enumerate(self.slots.tolist()):
            begin, end = self.bounds[b : b + 2].tolist()
            if slot >= 0 and end > begin:
                found.append((slot, slice(begin, end)))
        return found


def draw(o: Options) -> Case:
    """Slots out of order, NaN in dead slots, in gaps, in tokens that nobody owns, and in the outputs."""
    rng = np.random.default_rng(o.seed)
    sequences, capacity = len(o.lengths), max(n + c for n, c in zip(o.lengths, o.committed, strict=True)) + 2
    slots = np.roll(rng.permutation(sequences + 2), 1)[:sequences]
    slots[slots == 0] = slots[0]
    slots[0] = 0
    slots[-1] = -1 if o.padding else slots[-1]
    bounds = BEFORE + np.concatenate([[0], np.cumsum(o.lengths)])
    q = np.full((bounds[-1] + BEHIND, o.h, o.e), np.nan)
    K, V = np.full((2, sequences + 2, capacity, o.g, o.e), np.nan)
    length = np.full(sequences + 2, 2**30)
    for b, slot in enumerate(slots):
        if slot >= 0:
            end = o.committed[b] + o.lengths[b]
            q[bounds[b] : bounds[b + 1]] = tensors.draw(rng, o.lengths[b], o.h, o.e, forms=(o.io,), scale=o.size)
            K[slot, :end], V[slot, :end] = (tensors.draw(rng, end, o.g, o.e, forms=(o.io,)) for _ in range(2))
            length[slot] = o.committed[b]
    form, gap = o.io, 8 if o.descriptors else 3  # rows at multiples of 16 bytes, as a descriptor asks
    index = torch.int32 if o.seed % 2 else torch.int64
    return Case(
        o,
        strided(q, form),
        strided(K, form, gap),
        strided(V, form, gap),
        torch.from_numpy(length).to(index),
        torch.from_numpy(slots).to(index),
        torch.from_numpy(bounds).to(index),
        tensors.blank(form, *q.shape),
    )


def expected(case: Case, slot: int, cut: slice) -> tuple[Array, Array]:
    """The oracle's outputs of one sequence, and their bound."""
    o, tokens, committed = case.options, cut.stop - cut.start, int(case.length[slot])
    end = committed + tokens
    q, K, V = doubles(case.q)[None, cut], doubles(case.K)[slot, None, :end], doubles(case.V)[slot, None, :end]
    chain = np.tri(tokens, dtype=bool)[None]
    y = attention.read(q, KVState(K, V, np.array([committed])), chain, AttentionParams(scale=o.scale))
    mask = np.concatenate([np.ones((1, tokens, committed), bool), chain], axis=2)
    c = of_products(o.products, contract(o.io, o.io))  # type: ignore[arg-type]
    scale = o.e**-0.5 if o.scale is None else o.scale
    exact_q, exact_K, exact_V = (eb.exact(x, c) for x in (q, K, V))
    pair = eb.attention(exact_q, exact_K, exact_V, mask, scale, blocks=-(-end // BLOCK))
    return y[0], pair.store(o.io).error[0]  # type: ignore[arg-type]


COVER = [
    Options(),
    Options(io="bf16", g=1, h=3, e=33, scale=0.4, seed=1),
    Options(io="fp16", lengths=(17, 33), committed=(40, 0), g=2, h=2, e=5, padding=False, seed=2),
    Options(io="bf16", lengths=(16, 1, 1), committed=(16, 31, 0), h=6, g=3, e=16, size=8.0, seed=3),
    Options(io="bf16", products="bf16", committed=(14, 9, 4, 18), h=4, e=20, seed=4),
    Options(io="bf16", products="bf16", lengths=(5, 40, 17), committed=(30, 9, 40), h=6, e=32, descriptors=True, seed=5),
    Options(io="bf16", products="bf16", lengths=(33, 2), committed=(20, 31), e=24, descriptors=True, seed=6),
]


def check_bound(module: ModuleType, o: Options) -> None:
    case = draw(o)
    kept = Kept(**{name: getattr(case, name) for name in ("q", "K", "V", "length", "slots", "bounds", "out")})
    assert case.call(module) is case.out
    owned: list[Any] = []
    for slot, cut in case.rows():
        y, error = expected(case, slot, cut)
        comparison = eb.compare(doubles(case.out)[cut], y, error)
        assert comparison.passed, f"slot {slot}: {comparison}"
        owned += range(cut.start, cut.stop)
    kept.check(out=owned)


def check_bytes(module: ModuleType, o: Options, lost: bool = False) -> None:
    """`lost`: one value of each sequence is not finite, for which values are asked for again, and of none but those."""
    case = draw(o)
    for slot, _ in case.rows() if lost else []:
        case.V[slot, int(case.length[slot]), 0, 0] = float("inf")
    named = {name: getattr(case, name) for name in ("q", "K", "V", "length", "slots", "bounds", "out")}
    with watch(**named) as seen:
        case.call(module)
    assert seen.outside == seen.races == []
    crossed = sum(seen.loaded(n).distinct + seen.stored(n).distinct for n in ("q", "K", "V", "out"))
    rows = case.rows()
    tokens = sum(cut.stop - cut.start for _, cut in rows)
    slots = sum(int(case.length[slot]) + cut.stop - cut.start for slot, cut in rows)
    assert crossed == module.traffic_bytes(tokens, slots, o.h, o.g, o.e, io=case.q.element_size())
    assert seen.loaded("q").requested == seen.loaded("q").distinct
    again = seen.loaded("V").requested > seen.loaded("K").requested
    assert again == lost
    assert not any(seen.stored(name).distinct for name in named if name != "out")


@pytest.mark.parametrize("o", COVER, ids=str)
def test_outputs_lie_within_the_bound_and_nothing_else_is_written(o: Options) -> None:
    check_bound(kernel, o)


@pytest.mark.parametrize("o", [*COVER[:2], COVER[-1], Options(lengths=(1, 1), committed=(0, 3))], ids=str)
def test_bytes_equal_the_formula_and_dead_slots_are_not_read(o: Options) -> None:
    check_bytes(kernel, o)


@pytest.mark.parametrize("o", [COVER[0], COVER[-1]], ids=str)
def test_values_that_are_asked_for_again_are_those_that_were_read(o: Options) -> None:
    check_bytes(kernel, o, lost=True)


@pytest.mark.parametrize(
    ("old", "new"), [("(l < seen)[:, None] & in_e", "(l < seen)[:, None] | in_e"), ("(l < seen)", "(l <= seen)")], ids=str
)
def test_a_planted_read_beside_those_values_is_caught(old: str, new: str) -> None:
    line = "there = (l < seen)[:, None] & in_e[None, :]\n        lost"
    mutant = mutated(kernel, line, line.replace(old, new))
    with pytest.raises(AssertionError):
        check_bytes(mutant, COVER[0], lost=True)


def test_equal_keys_give_the_mean_of_the_values_exactly() -> None:
    """Scores are equal integers, p is 1, and the sums are of integers: token i of 16 sees i + 1 values, and their mean is
    i + 2. A quotient is exact where the divisor is a power of two; compiled, others may be wrong in their last bits."""
    K = torch.ones(1, 16, 1, 4)
    V = torch.zeros(1, 16, 1, 4)
    V[0, :, 0, 0] = torch.arange(1, 17) * 2.0
    y = kernel.causal_attention(torch.full((16, 2, 4), 3.0), K, V, torch.tensor([0, 16]), scale=1.0, block_t=16, block_l=16)
    exact = [0, 1, 3, 7, 15]
    assert torch.equal(y[exact, 0, 0], torch.tensor(exact) + 2.0)
    assert torch.equal(y[:, :, 1:], torch.zeros(16, 2, 3))


def test_a_prompt_in_two_pieces_has_the_outputs_of_one() -> None:
    o = Options(lengths=(37,), committed=(0,), padding=False)
    whole, pieces = draw(o), draw(o)
    whole.call(kernel)
    for begin, end in ((2, 18), (18, 39)):
        pieces.length.fill_(begin - BEFORE)
        pieces.call(kernel, bounds=torch.tensor([begin, end]))
    assert torch.equal(whole.out[BEFORE:-BEHIND], pieces.out[BEFORE:-BEHIND])


def check_any_rows(module: ModuleType) -> None:
    """Pools whose rows a descriptor cannot take, by their gaps or their start, are read by pointers."""
    for gap, start in ((3, 0), (8, 1)):
        case = draw(Options(io="bf16", products="bf16", lengths=(40,), committed=(20,), e=16, padding=False))
        pools = {}
        for name, pool in (("K", case.K), ("V", case.V)):
            pools[name] = torch.zeros(*pool.shape[:3], 16 + gap).bfloat16()[..., start : start + 16].copy_(pool)
        made = [case.call(module, descriptors=on, **pools)[BEFORE:-BEHIND].clone() for on in (False, True)]
        assert torch.equal(*made)


def test_rows_that_start_anywhere_are_read_by_pointers() -> None:
    check_any_rows(kernel)


@pytest.mark.parametrize("fault", [("pool.data_ptr() % 16 == 0 and ", ""), (" and offset % 16 == 0", "")])
def test_a_descriptor_of_rows_that_it_cannot_take_is_caught(fault: tuple[str, str]) -> None:
    with pytest.raises(AssertionError):
        check_any_rows(mutated(kernel, *fault))


def check_one_channel(module: ModuleType) -> None:
    """As for every other kernel: of a last axis of one element nothing is read by its stride."""
    K = torch.ones(1, 32, 2, 8, 8).bfloat16()[..., :1, 0]
    q = torch.ones(20, 2, 1).bfloat16()
    made = [
        module.causal_attention(q, K, K, torch.tensor([0, 20]), products="bf16", descriptors=near, block_t=16, block_l=16)
        for near in (False, True)
    ]
    assert torch.equal(*made)


def test_one_channel_may_have_any_stride() -> None:
    check_one_channel(kernel)


def test_a_descriptor_of_one_channel_with_a_gap_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_one_channel(mutated(kernel, "pool.stride(-1) == 1 and ", ""))


def test_large_scores_do_not_overflow() -> None:
    check_bound(kernel, Options(size=300.0, lengths=(9,), committed=(12,), padding=False))


def check_not_finite(module: ModuleType, products: str, form: str) -> None:
    """A value that is not finite reaches its channel in the tokens that see it, and no other."""
    rng = np.random.default_rng(7)
    shapes = (50, 4, 18), (1, 50, 2, 18), (1, 50, 2, 18)
    q, K, V = (strided(tensors.draw(rng, *shape, forms=(form,)), form) for shape in shapes)
    call = lambda: module.causal_attention(  # noqa: E731
        q, K, V, torch.tensor([0, 50]), block_t=BLOCK, block_l=BLOCK, products=products
    )
    clean, reached = call(), torch.zeros(50, 4, 18, dtype=torch.bool)
    for token, group, channel, value in ((21, 1, 3, float("nan")), (40, 0, 5, float("inf"))):
        V[0, token, group, channel] = value
        reached[token:, 2 * group : 2 * group + 2, channel] = True
    y = call()
    assert not bool(y[reached].isfinite().any())
    assert torch.equal(y[~reached], clean[~reached])


@pytest.mark.parametrize(("products", "form"), [("fp32", "fp32"), ("fp32", "bf16"), ("bf16", "bf16")])
def test_a_value_that_is_not_finite_reaches_only_the_tokens_that_see_it(products: str, form: str) -> None:
    check_not_finite(kernel, products, form)


def check_all(module: ModuleType) -> None:
    check_not_finite(module, "bf16", "bf16")
    for o in COVER:
        check_bound(module, o)
    check_bytes(module, COVER[0])


THERE = "there = (l < seen)[:, None] & in_e[None, :]\n"
FAULTS = [
    ("visible = l[None, :] <= last[:, None]", "visible = l[None, :] < last[:, None]", None),
    ("visible = l[None, :] <= last[:, None]", "visible = l[None, :] <= last[:, None] + 1", None),
    ("visible = l[None, :] <= last[:, None]", "visible = (l < seen)[None, :]", None),
    (f"{THERE}            K_l", f"{THERE.replace('seen', 'L')}            K_l", None),
    ("tl.min(last, axis=0) + 1, L) // BLOCK_L", "tl.max(last, axis=0) + 1, L) // BLOCK_L", None),
    ("tl.min(last, axis=0) + 1, L) // BLOCK_L", "tl.min(last, axis=0) + 2, L) // BLOCK_L", None),
    ("last += tl.load(length + slot)", "last += tl.load(length + b)", None),
    ("real, last, -1), axis=0) + 1, L)", "real, last, -1), axis=0), L)", None),
    ("shrink = tl.exp2(high - above)", "shrink = 1.0", None),
    ("above, shrink * total + tl.sum(p, axis=1)", "above, total + tl.sum(p, axis=1)", None),
    ("dot_onto(acc, p, V_l)", "dot_onto(acc, p.to(tl.bfloat16).to(tl.float32), V_l)", None),
    ("return above, shrink", "return high, shrink", None),
    ("whole = real[:, None]", "whole = (t < tokens)[:, None]", None),
    ("V + slot * stride_V.s + (h // HEADS_PER_KEY) * stride_V.g", "V + slot * stride_V.s + (h // 2) * stride_V.g", None),
    ("p = tl.exp2(s * factor", "p = tl.exp2(s", None),
    ("(h // HEADS_PER_KEY).to(tl.int32), 0]", "h.to(tl.int32) // 2, 0]", None),
    ("tl.cast(l0, tl.int32)", "tl.cast(l0 * 0, tl.int32)", None),
    ("tl.reshape(blocks_V.load(place)", "tl.reshape(blocks_K.load(place)", None),
    ("V_l = tl.where(lost, tl.zeros_like(V_l), V_l)", "pass", None),
    ("if poisoned > 0:", "if poisoned < 0:", None),
    ("if poisoned > 0:", "if poisoned >= 0:", None),
    ("whole & (meets > 0)", "whole", None),
    ("tokens // chunk + sequences", "tokens // chunk", "most"),
]


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[f"{old[:30]} -> {new[:40]}" for old, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all(mutant)
