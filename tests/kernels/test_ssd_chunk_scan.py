"""The SSD scan over packed prompts: against the oracle within the bound of its order, exactly, in its bytes."""

from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance.interpreter.memory import watch
from ssmspec_kernels.contract import Products, of_products
from ssmspec_kernels.shared import packed_chunks
from ssmspec_kernels.ssd import ssd_chunk_scan as kernel
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import packed, ssd
from ssmspec_ref.lengths import first
from ssmspec_ref.shapes import Array
from tests.kernels import ssd_cases as cases
from tests.kernels.delta_checks import assert_one_product
from tests.kernels.mutants import mutated
from tests.kernels.ssd_cases import Case, Options

CHUNK = 16
BEFORE, BEHIND = 2, 3
"""Tokens of the run that no sequence owns."""


@dataclass
class Packed:
    """A case as one run: row b of `case` has its first lengths[b] tokens in it. The last sequence may be padding."""

    case: Case
    lengths: Array
    fresh: Array
    run: dict[str, Tensor] = field(default_factory=dict)
    products: Products = "fp32"

    @property
    def bounds(self) -> Array:
        return BEFORE + np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def live(self) -> Array:
        return first(self.lengths, self.case.options.t)[self.case.rows]

    def call(self, module: ModuleType, **changes: Any) -> Tensor:
        o, c = self.case.options, self.case
        named = {"slots": c.slots, "dt_softplus": o.softplus, "dt_limit": o.limit, "chunk": CHUNK, "out": self.run["out"]}
        named["products"] = self.products
        named |= {"fresh": torch.from_numpy(self.fresh)} | {k: x for k, x in c.extra.items() if k != "z"} | changes
        if o.z:
            named.setdefault("z", self.run["z"])
        args = {name: named.pop(name, self.run[name]) for name in cases.TOKENS}
        bounds = named.pop("bounds", torch.from_numpy(self.bounds).to(c.slots.dtype))
        S, A = named.pop("S", c.S), named.pop("A", c.A)
        return module.ssd_chunk_scan(S, args["x"], args["dt"], A, args["B"], args["C"], bounds, **named)

    def states(self) -> Array:
        """The states of the live rows, zeros for those that are fresh."""
        S = cases.doubles(self.case.S)[self.case.named]
        S[self.fresh[self.case.rows]] = 0.0
        return S

    def bound(self, tokens: int | None = None) -> tuple[Any, Any]:
        """Outputs and states of the live rows after so many tokens of each, or all."""
        live = self.live[:, :tokens]
        window = self.case.window(self.live)
        if tokens is not None:
            window = replace(window, **{k: v[:, :tokens] for k, v in vars(window).items() if v is not None})
        contract = of_products(self.products, self.case.options.contract(order="chunked", chunk=CHUNK))
        return eb.ssd.scan(self.states(), window, self.case.params(), contract, live=live)

    def rows(self, run: Tensor) -> Array:
        """The tokens of a run by live rows, 0 behind the end."""
        y = np.zeros((len(self.lengths), self.case.options.t, *run.shape[1:]))
        for b, (begin, end) in enumerate(zip(self.bounds, self.bounds[1:], strict=False)):
            y[b, : end - begin] = cases.doubles(run)[begin:end]
        return y[self.case.rows]


def draw(o: Options, lengths: tuple[int, ...], fresh: tuple[int, ...] = (), padding: bool = True) -> Packed:
    """Slots out of order; the states of fresh sequences, and every token that is not theirs, are poison."""
    case = cases.draw(replace(o, b=len(lengths), t=max(lengths)), padding)
    result = Packed(case, np.array(lengths), np.isin(np.arange(len(lengths)), fresh))
    for b in fresh:
        case.S[case.slots[b]] = o.poison
    tensors = {name: getattr(case, name) for name in (*cases.TOKENS, "out")}
    for name, x in (tensors | ({"z": case.extra["z"]} if o.z else {})).items():
        run = np.full((result.bounds[-1] + BEHIND, *x.shape[2:]), o.poison)
        for b in case.rows:
            begin, end = result.bounds[b : b + 2]
            run[begin:end] = cases.doubles(x)[b, : end - begin]
        result.run[name] = cases.strided(run, x.dtype, o.poison)
    return result


COVER = [
    (Options(poison=7.0, D="channel", z=True), (5, 40, 0, 16), (1,)),
    (Options(io="bf16", state="bf16", gentle=True, g=1, h=2, p=35, n=33, limit=(0.05, 0.8), seed=1), (33, 17, 2), ()),
    (Options(io="fp16", state="fp16", D="", bias=False, softplus=False, h=2, p=5, n=16, seed=2), (50, 3), (0,)),
    (Options(io="bf16", h=3, g=1, p=20, n=40, z=True, gentle=True, seed=3, poison=3.0), (70,), ()),
    (Options(io="bf16", h=6, g=3, p=16, n=7, seed=4), (1, 31, 32, 1), (0, 2)),
]


def check_bound(
    module: ModuleType,
    o: Options,
    lengths: tuple[int, ...],
    fresh: tuple[int, ...],
    products: Products = "fp32",
    **tiles: int,
) -> None:
    """Outputs and states within the bound; tokens and slots of others keep their bits; the scratch is poison before."""
    case, twin = draw(o, lengths, fresh), draw(o, lengths, fresh)
    case.products = products
    y, S = case.bound()
    shape = module.scratch_shape(case.run["x"].shape[0], len(lengths), o.h, o.p, o.n, chunk=CHUNK, products=products)
    assert case.call(module, scratch=torch.full(shape, float("nan")), **tiles) is case.run["out"]
    comparison = eb.compare(case.rows(case.run["out"]), y.value, y.error)
    assert comparison.passed, f"y: {comparison}"
    cases.assert_within("S", case.case.S, S, case.case.named)
    case.case.S[case.case.named] = twin.case.S[twin.case.named]
    for b in case.case.rows:
        case.run["out"][case.bounds[b] : case.bounds[b + 1]] = twin.run["out"][case.bounds[b] : case.bounds[b + 1]]
    for name, x in (case.run | {"S": case.case.S}).items():
        was = twin.case.S if name == "S" else twin.run[name]
        assert cases.untouched(cases.whole(was), cases.whole(x)), f"{name} was written where it must not be"


def check_places(module: ModuleType) -> None:
    """The state after every chunk, and after the last token, is kept where it is wanted."""
    o, lengths = Options(h=2, p=6, n=9, g=1, spare=20, poison=7.0, seed=5), (40, 16, 5)
    case = draw(o, lengths, padding=False)
    row, spare = case.case.slots.tolist().index(0), max(set(range(23)) - set(case.case.slots.tolist()))
    case.case.S[spare], case.case.S[0], case.case.slots[row] = case.case.S[0].clone(), o.poison, spare
    free = [s for s in range(case.case.S.shape[0]) if s not in case.case.slots.tolist()]
    marks = packed.every(case.lengths, CHUNK)
    bounds = {int(m): case.bound(int(m))[1] for m in marks.tokens}
    places = torch.full((packed_chunks.most_chunks(case.run["x"].shape[0], 3, CHUNK),), -1, dtype=torch.int32)
    places[: len(marks.tokens)] = torch.tensor(free[: len(marks.tokens)])
    places[1] = -1
    case.call(module, places=places)
    for m, (b, tokens) in enumerate(zip(marks.sequence, marks.tokens, strict=True)):
        if places[m] >= 0:
            cases.assert_within(f"state {m}", case.case.S[int(places[m])], bounds[int(tokens)][b])
    assert bool((case.case.S[free[1]] == 7.0).all()), "a state was kept that nobody wanted"


def check_exact(module: ModuleType, o: Options) -> None:
    """Every row of the probe a sequence; all tokens are theirs."""
    case, window, params, S = cases.exact(o)
    y, S_next = ssd.scan(S, window, params)
    run = {name: getattr(case, name).flatten(0, 1).contiguous() for name in (*cases.TOKENS, "out")}
    bounds = torch.arange(0, o.b * o.t + 1, o.t)
    named = {**case.extra, "z": case.extra["z"].flatten(0, 1).contiguous()}
    got = module.ssd_chunk_scan(
        case.S, run["x"], run["dt"], case.A, run["B"], run["C"], bounds, slots=case.slots, out=run["out"], chunk=16, **named
    )
    assert torch.equal(got, torch.from_numpy(y).to(got.dtype).flatten(0, 1))
    assert np.array_equal(cases.doubles(case.S)[case.slots.numpy()], S_next)


@pytest.mark.parametrize(("o", "lengths", "fresh"), COVER, ids=str)
def test_output_and_state_lie_within_the_bound_and_nothing_else_is_written(o: Options, lengths: Any, fresh: Any) -> None:
    check_bound(kernel, o, lengths, fresh, block_n=16)


ROUNDED = [(o, lengths, fresh) for o, lengths, fresh in COVER if o.io == "bf16"]


@pytest.mark.parametrize(("o", "lengths", "fresh"), ROUNDED, ids=str)
def test_with_products_in_bf16_output_and_state_lie_within_their_bound(o: Options, lengths: Any, fresh: Any) -> None:
    check_bound(kernel, o, lengths, fresh, "bf16", block_n=16)


def test_a_larger_chunk_lies_within_its_bound() -> None:
    o = Options(io="bf16", h=2, g=1, gentle=True, seed=6)
    case = draw(o, (40, 7))
    contract = case.case.options.contract(order="chunked", chunk=32)
    y, _ = eb.ssd.scan(case.states(), case.case.window(case.live), case.case.params(), contract, live=case.live)
    case.call(kernel, chunk=32, block_p=16)
    comparison = eb.compare(case.rows(case.run["out"]), y.value, y.error)
    assert comparison.passed, str(comparison)


def test_states_after_chunks_are_kept_where_they_are_wanted() -> None:
    check_places(kernel)


@pytest.mark.parametrize("o", [Options(b=2, t=7, p=3, n=5), Options(b=3, t=4, p=6, n=9, io="bf16", g=1, seed=1)], ids=str)
def test_integers_come_out_exactly(o: Options) -> None:
    check_exact(kernel, o)


def test_decays_beyond_the_range_of_exp_give_no_nan() -> None:
    case = draw(Options(softplus=False, bias=False, h=2), (20, 3), padding=False)
    case.case.A.fill_(-400.0)
    y, S = case.bound()
    case.call(kernel)
    comparison = eb.compare(case.rows(case.run["out"]), y.value, y.error)
    assert comparison.passed, str(comparison)
    cases.assert_within("S", case.case.S, S, case.case.named)


@pytest.mark.parametrize("io", ["fp32", "bf16"])
def test_the_last_token_has_weight_dt_however_strong_the_decay(io: str) -> None:
    """Under decays that leave nothing, a sequence's state is what its last token writes alone, wherever its chunk ends."""
    o = Options(h=2, p=6, n=9, D="", bias=False, softplus=False, io=io)
    case, alone = (draw(o, (7, 29, 16), padding=False) for _ in range(2))
    for one in (case, alone):
        one.case.A.mul_(20000)  # dt is 0.02 at least, A 0.1: decays of 40 to 40000, which sum to units of 2^-9
    case.call(kernel)
    for b, end in enumerate(case.bounds[1:].tolist()):
        alone.call(kernel, bounds=torch.tensor([end - 1, end]), slots=alone.case.slots[b : b + 1], fresh=None)
    assert_one_product(case.case.S[case.case.named], alone.case.S[alone.case.named])


def test_a_sequence_has_the_same_bits_alone_and_in_any_run() -> None:
    o = Options(io="bf16", h=2, g=1, p=6, n=9)
    together = draw(o, (20, 40, 3), padding=False)
    alone = draw(o, (20, 40, 3), padding=False)
    together.call(kernel)
    for b in range(3):
        alone.call(kernel, bounds=torch.tensor(alone.bounds[b : b + 2]), slots=alone.case.slots[b : b + 1], fresh=None)
    assert torch.equal(together.run["out"][BEFORE:-BEHIND], alone.run["out"][BEFORE:-BEHIND])
    named = together.case.named
    assert torch.equal(together.case.S[named], alone.case.S[named])


def check_bytes(module: ModuleType, o: Options, lengths: tuple[int, ...], products: Products = "fp32") -> None:
    case = draw(o, lengths, padding=False)
    case.products = products
    shape = module.scratch_shape(case.run["x"].shape[0], len(lengths), o.h, o.p, o.n, chunk=CHUNK, products=products)
    scratch, bounds = torch.full(shape, float("nan")), torch.from_numpy(case.bounds)
    fresh = torch.zeros(len(lengths), dtype=torch.bool)
    params = {k: v for k, v in case.case.extra.items() if k != "z"} | {"A": case.case.A, "slots": case.case.slots}
    apart = params | {"bounds": bounds, "fresh": fresh}
    with watch(S=case.case.S, scratch=scratch, **case.run, **apart) as seen:
        case.call(module, bounds=bounds, scratch=scratch, fresh=fresh)
    assert seen.outside == seen.races == []
    crossed = seen.distinct_bytes() - sum(seen.loaded(name).distinct for name in apart)
    chunks = sum(-(-length // CHUNK) for length in lengths)
    sizes: dict[str, Any] = {"state": case.case.S.element_size(), "io": case.run["x"].element_size(), "chunk": CHUNK}
    sizes["products"] = products
    expected = module.traffic_bytes(sum(lengths), chunks, len(lengths), o.h, o.p, o.n, o.g, **sizes, z=o.z)
    assert crossed == expected
    assert seen.loaded("S").requested == seen.stored("S").requested == seen.loaded("S").distinct


@pytest.mark.parametrize("o", [Options(p=19, z=True), Options(h=2, io="bf16", state="bf16", n=16, g=1)], ids=str)
def test_bytes_equal_the_formula_and_the_state_is_read_and_written_once(o: Options) -> None:
    check_bytes(kernel, o, (20, 16, 5))
    if o.io == "bf16":
        check_bytes(kernel, o, (20, 16, 5), "bf16")


def check_all(module: ModuleType) -> None:
    check_bound(module, Options(h=2, p=6, n=9, D="channel", z=True, poison=7.0), (5, 33, 0, 16), (1,))
    check_bound(module, Options(h=4, p=5, n=7, io="bf16", gentle=True, seed=4), (1, 18, 2), (0,))
    check_places(module)
    check_bytes(module, Options(h=2, p=3, n=5, g=1), (20, 16, 5))


BROUGHT = "brought = tl.trans((tl.exp(total - G) * step)[:, None] * x_t)"
FAULTS = [
    ("            real = t < end\n            G", "            real = t < tokens\n            G", None),
    ("real = (t < end)[:, None] & in_h", "real = (t < tokens)[:, None] & in_h", None),
    (BROUGHT, BROUGHT.replace("step)", "step * tl.where(t - start - c * CHUNK < CHUNK - 1, 1.0, 0.0))"), None),
    (BROUGHT, BROUGHT.replace(" * step", ""), None),
    ("c * CHUNK, CHUNK) - 1, G", "c * CHUNK, CHUNK) - 2, G", None),
    ("held = inside & (tl.load(fresh + b) == 0)", "held = inside & (tl.load(fresh + b) != 0)", None),
    ("state = tl.exp(total) * state + dot_left", "state = state + dot_left", None),
    ("if slot >= 0:\n        start, end, first", "if h >= 0:\n        start, end, first", None),
    ("inside & (place >= 0)", "inside & (place > 0)", None),
    ("places + first + c", "places + c", None),
    ("dot_left(brought, B_t, ROUND)", "dot_left(brought, B_t, True)", None),
    ("(i[:, None] >= i[None, :])", "(i[:, None] > i[None, :])", None),
    ("of_head = first * stride_c", "of_head = b * stride_c", None),
    ("x_t, ROUND) +", "x_t, True) +", None),
    ("n < N)), ROUND)", "n < N)), True)", None),
    ("tl.exp(G)[:, None] * from_state", "from_state", None),
    ("n < N)\n            scores +=", "n < N - 1)\n            scores +=", None),
    ("h0 + tile // TILES", "h0", None),
    ("tl.range(0, HEADS * TILES,", "tl.range(0, HEADS * TILES - 1,", None),
    ("tl.store(at + CHUNK, step", "tl.store(at + CHUNK, G", None),
    ("mask=real[:, None] & in_p[None, :])\n", "mask=(t < tokens)[:, None] & in_p[None, :])\n", None),
    ("(c - before) * CHUNK", "c * CHUNK", "chunk_place"),
    ("(before <= c) & (c < before + count)", "(before < c) & (c < before + count)", "chunk_place"),
    ("(end - begin + CHUNK - 1) // CHUNK", "(end - begin) // CHUNK", "_sequences"),
]


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new[-60:] for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all(mutant)
