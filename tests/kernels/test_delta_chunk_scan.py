"""The delta rule over packed prompts: against the oracle within the bound of its order, exactly, in its bytes."""

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance.interpreter.memory import watch
from ssmspec_kernels.contract import Products, of_products
from ssmspec_kernels.delta import delta_chunk_scan as kernel
from ssmspec_kernels.shared import packed_chunks
from ssmspec_ref import delta, exact_probes, packed
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.delta import DeltaWindow
from ssmspec_ref.errors import Unsupported
from ssmspec_ref.lengths import first
from ssmspec_ref.shapes import Array
from tests.kernels import delta_cases as cases
from tests.kernels.covers import rejected
from tests.kernels.delta_cases import Case
from tests.kernels.delta_plot import Options
from tests.kernels.mutants import mutated
from tests.kernels.tensors import assert_one_product, doubles

CHUNK = 16
BEFORE, BEHIND = 2, 3
"""Tokens of the run that no sequence owns."""
TOKENS = ("q", "k", "v", "g", "beta")


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
    def named(self) -> Array:
        return self.case.slots.numpy()[self.case.rows]

    def call(self, module: ModuleType, **changes: Any) -> Tensor:
        o, c = self.case.options, self.case
        named: dict[str, Any] = {"S": c.S, "slots": c.slots, "l2_norm": o.l2_norm, "scale": o.scale, "chunk": CHUNK}
        named["products"] = self.products
        named |= {"fresh": torch.from_numpy(self.fresh), "bounds": torch.from_numpy(self.bounds).to(c.slots.dtype)}
        return module.delta_chunk_scan(**{**named, **self.run, **c.extra, **changes})

    def bound(self, tokens: int | None = None, chunk: int = CHUNK) -> tuple[Any, Any]:
        """Outputs and states of the live rows after so many tokens of each, or all."""
        live = first(self.lengths, self.case.options.t)[self.case.rows][:, :tokens]
        window, inexact = self.case.window()
        window = DeltaWindow(**{name: x[:, :tokens] for name, x in vars(window).items()})
        inexact = {name: x[:, :tokens] for name, x in inexact.items()}
        S = self.case.state()
        S[self.fresh[self.case.rows]] = 0.0
        contract = of_products(self.products, self.case.options.contract(order="chunked", chunk=chunk))
        return eb.delta.scan(S, window, self.case.options.params(), contract, live=live, inexact=inexact)

    def rows(self) -> Array:
        """The outputs by live rows, 0 behind the end."""
        run = doubles(self.run["out"])
        o = np.zeros((len(self.lengths), self.case.options.t, *run.shape[1:]))
        for b, (begin, end) in enumerate(zip(self.bounds, self.bounds[1:], strict=False)):
            o[b, : end - begin] = run[begin:end]
        return o[self.case.rows]


def draw(o: Options, lengths: tuple[int, ...], fresh: tuple[int, ...] = (), padding: bool = True) -> Packed:
    """Slots out of order; the states of fresh sequences, and every token that is not theirs, are poison."""
    case = cases.draw(replace(o, b=len(lengths), t=max(lengths)), padding)
    result = Packed(case, np.array(lengths), np.isin(np.arange(len(lengths)), fresh))
    for b in fresh:
        case.S[case.slots[b]] = o.poison
    for name in (*TOKENS, "out"):
        x = getattr(case, name)
        run = np.full((result.bounds[-1] + BEHIND, *x.shape[2:]), o.poison)
        for b in case.rows:
            begin, end = result.bounds[b : b + 2]
            run[begin:end] = doubles(x)[b, : end - begin]
        result.run[name] = cases.strided(run, x.dtype, o.poison)
    return result


SMALL = Options(h=2, k=6, v=5, poison=7.0)
COVER = [
    (SMALL, (5, 33, 0, 16), (1,)),
    (Options(io="bf16", gentle=True, g=1, h=3, k=17, v=33, seed=1), (34, 17, 2), ()),
    (Options(io="fp16", state="fp16", l2_norm=False, scale=0.7, h=2, seed=2), (19, 3), (0,)),
    (Options(io="bf16", state="bf16", raw=True, bias=True, h=2, g=1, seed=3, poison=3.0), (40,), ()),
    (Options(io="bf16", channel=True, h=2, k=9, v=7, seed=4), (1, 18, 5), (0,)),
    (Options(channel=True, raw=True, bias=True, h=2, g=1, k=5, v=4, seed=5), (20, 2), ()),
]


def check_bound(
    module: ModuleType, o: Options, lengths: tuple[int, ...], fresh: tuple[int, ...], chunk: int = CHUNK,
    products: Products = "fp32", **tiles: int,
) -> None:  # fmt: skip
    """Outputs and states within the bound; tokens and slots of others keep their bits; the scratch is poison before."""
    case, twin = draw(o, lengths, fresh), draw(o, lengths, fresh)
    case.products = products
    y, S = case.bound(chunk=chunk)
    shape = module.scratch_shape(case.run["q"].shape[0], len(lengths), o.h, chunk=chunk)
    assert case.call(module, chunk=chunk, scratch=torch.full(shape, float("nan")), **tiles) is case.run["out"]
    assert max(np.mean((abs(pair.value) <= pair.error)[pair.value != 0]) for pair in (y, S)) < 0.5, "zeros would pass"
    comparison = eb.compare(case.rows(), y.value, y.error)
    assert comparison.passed, f"o: {comparison}"
    cases.assert_within("S", case.case.S, S, case.named)
    case.case.S[case.named] = twin.case.S[twin.named]
    for b in case.case.rows:
        case.run["out"][case.bounds[b] : case.bounds[b + 1]] = twin.run["out"][case.bounds[b] : case.bounds[b + 1]]
    for name, x in (case.run | {"S": case.case.S}).items():
        was = twin.case.S if name == "S" else twin.run[name]
        assert cases.untouched(cases.whole(was), cases.whole(x)), f"{name} was written where it must not be"


def check_places(module: ModuleType) -> None:
    """The state after every chunk, and after the last token, is kept where it is wanted; slot 0 is a place."""
    o, lengths = replace(SMALL, spare=12), (34, 16, 5)
    case = draw(o, lengths, padding=False)
    slots = case.case.slots.tolist()
    row, spare = slots.index(0), max(set(range(15)) - set(slots))
    case.case.S[spare], case.case.S[0], case.case.slots[row] = case.case.S[0].clone(), o.poison, spare
    free = [s for s in range(15) if s not in case.case.slots.tolist()]
    marks = packed.every(case.lengths, CHUNK)
    bounds = {int(m): case.bound(int(m))[1] for m in marks.tokens}
    places = torch.full((packed_chunks.most_chunks(case.run["q"].shape[0], 3, CHUNK),), -1, dtype=torch.int32)
    places[: len(marks.tokens)] = torch.tensor(free[: len(marks.tokens)])
    places[1] = -1
    case.call(module, places=places)
    for m, (b, tokens) in enumerate(zip(marks.sequence, marks.tokens, strict=True)):
        if places[m] >= 0:
            cases.assert_within(f"state {m}", case.case.S[int(places[m])], bounds[int(tokens)][b])
    assert bool((case.case.S[free[1]] == o.poison).all()), "a state was kept that nobody wanted"


def check_bytes(module: ModuleType, o: Options, lengths: tuple[int, ...], chunk: int = CHUNK) -> None:
    case = draw(o, lengths, padding=False)
    shape = module.scratch_shape(case.run["q"].shape[0], len(lengths), o.h, chunk=chunk)
    scratch, bounds = torch.full(shape, float("nan")), torch.from_numpy(case.bounds)
    apart = {"bounds": bounds, "fresh": torch.zeros(len(lengths), dtype=torch.bool), "slots": case.case.slots}
    with watch(S=case.case.S, scratch=scratch, **case.run, **apart) as seen:
        case.call(module, scratch=scratch, chunk=chunk, **apart)
    assert seen.outside == seen.races == []
    crossed = seen.distinct_bytes() - sum(seen.loaded(name).distinct for name in apart)
    chunks = sum(-(-length // chunk) for length in lengths)
    sizes = {"state": case.case.S.element_size(), "io": case.run["q"].element_size(), "channel": o.channel, "chunk": chunk}
    assert crossed == module.traffic_bytes(sum(lengths), chunks, len(lengths), o.g, o.h, o.k, o.v, **sizes)
    assert seen.loaded("S").requested == seen.stored("S").requested == seen.loaded("S").distinct
    assert seen.stored("scratch").requested == seen.stored("scratch").distinct


@pytest.mark.parametrize(("o", "lengths", "fresh"), COVER, ids=str)
def test_output_and_state_lie_within_the_bound_and_nothing_else_is_written(o: Options, lengths: Any, fresh: Any) -> None:
    check_bound(kernel, o, lengths, fresh)


LARGER = [
    (Options(io="bf16", h=2, g=1, k=7, v=9, gentle=True, seed=6), (40, 7), 32),
    (Options(io="bf16", h=2, g=1, k=7, v=9, gentle=True, raw=True, bias=True, seed=7), (70, 33, 64), 64),
    (Options(h=1, g=1, k=3, v=2, channel=True, seed=8), (40,), 64),
]


@pytest.mark.parametrize(("o", "lengths", "chunk"), LARGER, ids=str)
def test_a_larger_chunk_lies_within_its_bound(o: Options, lengths: Any, chunk: int) -> None:
    check_bound(kernel, o, lengths, (), chunk, block_v=32)


ROUNDED = [(replace(o, gentle=False), lengths, fresh) for o, lengths, fresh in COVER if o.io == "bf16"]
"""Under weak decays the bound of rounded products outgrows the values within a chunk: zeros would pass."""


@pytest.mark.parametrize("chunk", [16, 64])
@pytest.mark.parametrize(("o", "lengths", "fresh"), ROUNDED, ids=str)
def test_with_products_in_bf16_output_and_state_lie_within_their_bound(
    o: Options, lengths: Any, fresh: Any, chunk: int
) -> None:
    check_bound(kernel, o, lengths, fresh, chunk, "bf16")


def test_states_after_chunks_are_kept_where_they_are_wanted() -> None:
    check_places(kernel)


@pytest.mark.parametrize("channel", [False, True])
def test_integers_come_out_exactly(channel: bool) -> None:
    S, window, params = exact_probes.delta_probe(np.random.default_rng(3), b=2, t=5, channel_gate=channel, form="fp32")
    o, S_next = delta.scan(S, window, params)
    run: dict[str, Any] = {name: torch.from_numpy(x).float().flatten(0, 1) for name, x in vars(window).items()}
    pool, bounds = torch.from_numpy(S).float(), torch.arange(0, 11, 5)
    got = kernel.delta_chunk_scan(pool, **run, bounds=bounds, l2_norm=params.l2_norm, scale=params.scale, chunk=16)
    assert np.array_equal(doubles(got), o.reshape(got.shape))
    assert np.array_equal(doubles(pool), S_next)


def test_a_sequence_has_the_same_bits_alone_and_in_any_run() -> None:
    o = replace(SMALL, io="bf16")
    together, alone = (draw(o, (20, 33, 3), padding=False) for _ in range(2))
    together.call(kernel)
    for b in range(3):
        alone.call(kernel, bounds=torch.tensor(alone.bounds[b : b + 2]), slots=alone.case.slots[b : b + 1], fresh=None)
    assert torch.equal(together.run["out"][BEFORE:-BEHIND], alone.run["out"][BEFORE:-BEHIND])
    assert torch.equal(together.case.S[together.named], alone.case.S[together.named])


def test_decays_beyond_the_range_of_exp_give_no_nan() -> None:
    case = draw(SMALL, (20, 3), padding=False)
    case.case.g.fill_(-400.0)
    case.run["g"].fill_(-400.0)
    o, S = case.bound()
    case.call(kernel)
    comparison = eb.compare(case.rows(), o.value, o.error)
    assert comparison.passed, str(comparison)
    cases.assert_within("S", case.case.S, S, case.named)


def check_steep(module: ModuleType, channel: bool) -> None:
    """What a place behind the end of a sequence would decay by, had it a gate, is neither in the output nor in the state."""
    case = draw(replace(SMALL, raw=True, bias=True, channel=channel), (20, 3), padding=False)
    cases.steepen(case.case, 8.0, case.case.g, case.run["g"])
    o, S = case.bound()
    case.call(module)
    comparison = eb.compare(case.rows(), o.value, o.error)
    assert comparison.passed, str(comparison)
    cases.assert_within("S", case.case.S, S, case.named)


@pytest.mark.parametrize("channel", [False, True])
def test_places_behind_the_end_decay_nothing_however_large_the_bias(channel: bool) -> None:
    check_steep(kernel, channel)


def check_last(module: ModuleType, o: Options, chunk: int) -> None:
    """Under decays that leave nothing, a sequence's state is what its last token writes alone, wherever its chunk ends."""
    case, alone = (draw(replace(o, strong=True), (7, 29, 16), padding=False) for _ in range(2))
    case.call(module, chunk=chunk)
    for b, end in enumerate(case.bounds[1:].tolist()):
        alone.call(module, bounds=torch.tensor([end - 1, end]), slots=alone.case.slots[b : b + 1], fresh=None, chunk=chunk)
    assert_one_product(case.case.S[case.named], alone.case.S[alone.named])


@pytest.mark.parametrize("chunk", [16, 32])
@pytest.mark.parametrize("o", [SMALL, replace(SMALL, io="bf16"), replace(SMALL, channel=True)], ids=str)
def test_the_last_token_has_weight_1_however_strong_the_decay(o: Options, chunk: int) -> None:
    check_last(kernel, o, chunk)


@pytest.mark.parametrize("o", [replace(SMALL, v=16), replace(SMALL, io="bf16", channel=True, g=1, v=3)], ids=str)
def test_bytes_equal_the_formula_and_the_state_is_read_and_written_once(o: Options) -> None:
    check_bytes(kernel, o, (20, 16, 5))


@pytest.mark.parametrize(
    ("capability", "chunk", "refused"), [(9, 64, False), (10, 32, False), (10, 64, True), (12, 64, True)]
)
def test_chunks_of_64_are_refused_where_the_walk_is_compiled_to_nothing(
    capability: int, chunk: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    with pytest.raises(Unsupported, match="give 16 or 32") if refused else nullcontext():
        kernel._check_chunk(chunk, torch.device("cuda"))


def check_all(module: ModuleType) -> None:
    check_bound(module, *COVER[0])
    check_bound(module, Options(io="bf16", raw=True, g=1, h=2, k=5, v=3, poison=3.0, seed=1), (18, 2), ())
    check_places(module)
    check_bytes(module, replace(SMALL, v=16), (20, 16, 5))
    check_bytes(module, replace(SMALL, h=1, g=1, v=3), (50,), 64)
    check_bound(module, Options(h=1, g=1, k=7, v=3, gentle=True, seed=7), (50,), (), 64)
    check_steep(module, False)


FAULTS = [
    ("            real = t < end", "            real = t < tokens", None),
    ("real, in_k = t < end, i < K", "real, in_k = t < end + 1, i < K", None),
    ("held = inside & (tl.load(fresh + b) == 0)", "held = inside & (tl.load(fresh + b) != 0)", None),
    ("inside & (place >= 0)", "inside & (place > 0)", None),
    ("places + first + c", "places + c", None),
    ("l[:, None] > l[None, :], l[:, None] >= l[None, :]", "l[:, None] > l[None, :], l[:, None] > l[None, :]", None),
    ("coupling = beta_t[:, None] *", "coupling = beta_t[None, :] *", None),
    ("substituted(coupling, tl.where(l[:, None] == l[None, :], 1.0, 0.0), HALF)", "-coupling", None),
    ("1.0, 0.0), HALF)", "1.0, 0.0), HALF - 12)", None),
    ("dot_both(-between, T_a", "dot_both(between, T_a", None),
    ("G_b += total\n", "G_b += 0.0\n", None),
    ("last(G_a, HALF - 1)", "last(G_a, HALF - 2)", None),
    ("tl.minimum(end - start - c * CHUNK, CHUNK) - 1", "tl.minimum(end - start - c * CHUNK, CHUNK) - 2", None),
    ("HALF) * beta_t[None, :]", "HALF)", None),
    ("tl.load(at_T + HALF * CHUNK + HALF)", "tl.load(at_T)", None),
    ("tl.store(at_P + HALF, tl.zeros_like(T_a))", "pass", None),
    ("in_b, in_k = t < end, t + HALF < end,", "in_b, in_k = t < end, t + HALF < end + 1,", None),
    ("tl.load(at_r + HALF + CHUNK)", "tl.load(at_r + CHUNK)", None),
    ("stride_T.c), R, SPLIT, ROUND)", "stride_T.c), R.to(tl.bfloat16).to(tl.float32), SPLIT, ROUND)", None),
    ("CHUNK * CHUNK), U, SPLIT, ROUND)", "CHUNK * CHUNK), R, SPLIT, ROUND)", None),
    ("at_T = scratch + first * stride_T.c", "at_T = scratch + b * stride_T.c", None),
    ("mask=real[:, None] & in_v[None, :])", "mask=(t < tokens)[:, None] & in_v[None, :])", None),
    ("v + h * stride_v.h", "v + group * stride_v.h", None),
    ("return tl.where(there, g_t, 0.0)", "return g_t", None),
    ("scale * tl.rsqrt(tl.sum(f * f, axis=1) + eps)", "scale * tl.rsqrt(tl.sum(f * f, axis=1))", "norms"),
]


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new[:70] for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    assert rejected(mutated(kernel, old, new, at=at), check_all)
