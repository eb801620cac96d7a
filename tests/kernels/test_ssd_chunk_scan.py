"""The SSD scan over packed prompts: what every launcher is held to, and what is its own."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.contract import Products, of_products
from ssmspec_kernels.shared import packed_chunks
from ssmspec_kernels.ssd import ssd_chunk_scan as kernel
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import packed
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.ssd import SSDWindow
from tests.kernels import plot
from tests.kernels import ssd_plot as ssd
from tests.kernels.laws import (  # noqa: F401
    Subject,
    check_bound,
    moved,
    pytest_generate_tests,
    test_bytes_equal_the_formula_and_the_state_is_read_once,
    test_planted_fault_is_caught,
    test_results_lie_within_the_bound_and_nothing_else_is_written,
    test_what_a_launcher_alone_is_held_to,
)
from tests.kernels.plot import Call
from tests.kernels.tensors import assert_one_product, check_within, doubles

CHUNK = 16
BEFORE, BEHIND = 2, 3
"""Tokens of the run that no sequence owns."""
TOKENS = ("x", "dt", "B", "C", "z")


@dataclass(frozen=True)
class Options(ssd.Options):
    """Sequences of these lengths in one run, of which some are fresh; the last or the second may be padding."""

    lengths: tuple[int, ...] = (5, 40, 0, 16)
    fresh: tuple[int, ...] = ()
    products: Products = "fp32"
    chunk: int = CHUNK


def drawn(o: Options) -> Call:
    """Slots out of order; the states of fresh sequences, and every token that is not theirs, are poison, and the scratch."""
    b, bounds = len(o.lengths), BEFORE + np.concatenate([[0], np.cumsum(o.lengths)])
    found, settings = ssd.values(replace(o, b=b, t=max(o.lengths)))
    run: dict[str, Any] = {"bounds": bounds, "fresh": np.isin(np.arange(b), o.fresh)}
    for name, x in found.items():
        run[name] = x
        if name in TOKENS and x is not None:
            run[name] = np.full((bounds[-1] + BEHIND, *x.shape[2:]), o.poison)
            for row, length in enumerate(o.lengths):
                run[name][bounds[row] : bounds[row + 1]] = x[row, :length]
    call = plot.drawn("ssd_chunk_scan", replace(o, b=b), run, chunk=o.chunk, products=o.products, **settings)
    for row in range(b):
        if row not in call.rows:
            for x in call.cut(slice(*bounds[row : row + 2])).values():
                x.fill_(o.poison)
        elif row in o.fresh:
            call["S"][int(call["slots"][row])] = o.poison
    shape = kernel.scratch_shape(len(call["x"]), b, o.h, o.p, o.n, chunk=o.chunk, products=o.products)
    call["scratch"] = torch.full(shape, float("nan"))
    return call


def after(call: Call, row: int, count: int) -> tuple[Approx | None, Approx]:
    """Outputs of the first tokens of a sequence, and the state behind them."""
    o: Any = call.options
    contract = of_products(o.products, o.contract(order="chunked", chunk=o.chunk))
    start = doubles(call["S"])[int(call["slots"][row])][None] * (not call["fresh"][row])
    start = np.zeros_like(start) if call["fresh"][row] else start
    if not count:
        return None, eb.exact(start, contract)
    cut = slice(begin := int(call["bounds"][row]), begin + count)
    run = {name: doubles(call[name])[None, cut] for name in TOKENS if name in call.given}
    y, S = eb.ssd.scan(start, SSDWindow(**{"z": None, **run}), ssd.params(call), contract)  # type: ignore[arg-type]
    return y, S


def of_run(call: Call) -> Iterator[tuple[str, Any, Any]]:
    o: Any = call.options
    yield "scratch", slice(None), None
    for row, slot in zip(call.rows, call.named.tolist(), strict=True):
        y, S = after(call, row, o.lengths[row])
        yield "S", slot, S[0]
        if y is not None:
            yield "out", slice(*call["bounds"][row : row + 2].tolist()), y[0]


def run_bytes(module: Any, call: Call) -> int:
    o: Any = call.options
    chunks = sum(-(-length // o.chunk) for length in o.lengths)
    sizes = {"tokens": sum(o.lengths), "chunks": chunks, "sequences": len(o.lengths)}
    return moved(module.traffic_bytes, call, chunk=o.chunk, products=o.products, **sizes)


def check_places(module: ModuleType) -> None:
    """The state after every chunk, and after the last token, is kept where it is wanted; the first slot is free for one."""
    o = Options(h=2, p=6, n=9, g=1, spare=20, poison=7.0, seed=5, lengths=(40, 16, 5), padding=False)
    call = drawn(o)
    row, spare = call["slots"].tolist().index(0), max({*range(23)} - {*call["slots"].tolist()})
    call["S"][spare], call["S"][0], call["slots"][row] = call["S"][0].clone(), o.poison, spare
    free = [s for s in range(23) if s not in call["slots"].tolist()]
    marks = packed.every(np.array(o.lengths), CHUNK)
    wanted = [after(call, row, int(count))[1] for row, count in zip(marks.sequence, marks.tokens, strict=True)]
    places = torch.full((packed_chunks.most_chunks(len(call["x"]), 3, CHUNK),), -1, dtype=torch.int32)
    places[: len(wanted)] = torch.tensor(free[: len(wanted)])
    places[1] = -1
    call.run(module, places=places)
    for place, S in zip(places.tolist(), wanted, strict=False):
        if place >= 0:
            check_within(doubles(call["S"][place])[None], S)
    assert bool((call["S"][free[1]] == 7.0).all()), "a state was kept that nobody wanted"


COVER = [
    Options(poison=7.0, D="channel", z=True, fresh=(1,)),
    Options(io="bf16", state="bf16", gentle=True, g=1, h=2, p=35, n=33, limit=(0.05, 0.8), seed=1, lengths=(33, 17, 2)),
    Options(io="fp16", state="fp16", D="", bias=False, softplus=False, h=2, p=5, n=16, seed=2, lengths=(50, 3), fresh=(0,)),
    Options(io="bf16", h=3, g=1, p=20, n=40, z=True, gentle=True, seed=3, poison=3.0, lengths=(70,)),
    Options(io="bf16", h=6, g=3, p=16, n=7, seed=4, lengths=(1, 31, 32, 1), fresh=(0, 2)),
]
BYTES = [
    Options(h=2, p=3, n=5, g=1, lengths=(20, 16, 5), padding=False),
    Options(p=19, z=True, lengths=(20, 16, 5), padding=False),
    Options(h=2, io="bf16", state="bf16", n=16, g=1, lengths=(20, 16, 5), padding=False),
]
WALK = {"block_n": 16}
SUBJECTS = [
    Subject(
        "ssd_chunk_scan",
        kernel,
        drawn,
        of_run,
        cover=[
            Options(h=2, p=6, n=9, D="channel", z=True, poison=7.0, lengths=(5, 33, 0, 16), fresh=(1,)),
            Options(h=4, p=5, n=7, io="bf16", gentle=True, seed=4, lengths=(1, 18, 2), fresh=(0,)),
            *(replace(o, how=WALK) for o in COVER),
            *(replace(o, products="bf16", how=WALK) for o in COVER if o.io == "bf16"),
            Options(io="bf16", h=2, g=1, gentle=True, seed=6, lengths=(40, 7), chunk=32, how={"block_p": 16}),
            Options(p=3, n=5, exact=True, padding=False, lengths=(7, 7)),
            Options(p=6, n=9, io="bf16", g=1, exact=True, padding=False, seed=1, lengths=(4, 4, 4)),
        ],
        moves=[*BYTES, replace(BYTES[2], products="bf16")],
        formula=run_bytes,
        special=[check_places],
    )
]


def test_decays_beyond_the_range_of_exp_give_no_nan() -> None:
    def strong(o: Options) -> Call:
        call = drawn(o)
        call["A"].fill_(-400.0)
        return call

    o = Options(softplus=False, bias=False, h=2, lengths=(20, 3), padding=False)
    check_bound(replace(SUBJECTS[0], draw=strong), kernel, o)


@pytest.mark.parametrize("io", ["fp32", "bf16"])
def test_the_last_token_has_weight_dt_however_strong_the_decay(io: str) -> None:
    """Under decays that leave nothing, a sequence's state is what its last token writes alone, wherever its chunk ends."""
    o = Options(h=2, p=6, n=9, D="", bias=False, softplus=False, io=io, lengths=(7, 29, 16), padding=False)
    call, alone = (drawn(o) for _ in range(2))
    for one in (call, alone):
        one["A"].mul_(20000)  # dt is 0.02 at least, A 0.1: decays of 40 to 40000, which sum to units of 2^-9
    call.run(kernel)
    for b, end in enumerate(call["bounds"][1:].tolist()):
        alone.run(kernel, bounds=torch.tensor([end - 1, end]), slots=alone["slots"][b : b + 1], fresh=None, scratch=None)
    assert_one_product(call["S"][call.named], alone["S"][alone.named])


def test_a_sequence_has_the_same_bits_alone_and_in_any_run() -> None:
    o = Options(io="bf16", h=2, g=1, p=6, n=9, lengths=(20, 40, 3), padding=False)
    together, alone = drawn(o), drawn(o)
    together.run(kernel)
    for b in range(3):
        how = {"bounds": alone["bounds"][b : b + 2], "slots": alone["slots"][b : b + 1], "fresh": None, "scratch": None}
        alone.run(kernel, **how)
    assert torch.equal(together["out"][BEFORE:-BEHIND], alone["out"][BEFORE:-BEHIND])
    assert torch.equal(together["S"][together.named], alone["S"][alone.named])


FAULTS = {
    "ssd_chunk_scan": [
        ("            real = t < end\n            G", "            real = t < tokens\n            G"),
        ("real = (t < end)[:, None] & in_h", "real = (t < tokens)[:, None] & in_h"),
        ("brought = tl.trans((tl.exp(total - G) * step)",
         "brought = tl.trans((tl.exp(total - G) * step * tl.where(t - start - c * CHUNK < CHUNK - 1, 1.0, 0.0))"),
        ("brought = tl.trans((tl.exp(total - G) * step)[:, None] * x_t)",
         "brought = tl.trans((tl.exp(total - G))[:, None] * x_t)"),
        ("c * CHUNK, CHUNK) - 1, G", "c * CHUNK, CHUNK) - 2, G"),
        ("held = inside & (tl.load(fresh + b) == 0)", "held = inside & (tl.load(fresh + b) != 0)"),
        ("state = tl.exp(total) * state + dot_left", "state = state + dot_left"),
        ("if slot >= 0:\n        start, end, first", "if h >= 0:\n        start, end, first"),
        ("inside & (place >= 0)", "inside & (place > 0)"),
        ("places + first + c", "places + c"),
        ("dot_left(brought, B_t, ROUND)", "dot_left(brought, B_t, True)"),
        ("(i[:, None] >= i[None, :])", "(i[:, None] > i[None, :])"),
        ("of_head = first * stride_c", "of_head = b * stride_c"),
        ("x_t, ROUND) +", "x_t, True) +"),
        ("n < N)), ROUND)", "n < N)), True)"),
        ("tl.exp(G)[:, None] * from_state", "from_state"),
        ("n < N)\n            scores +=", "n < N - 1)\n            scores +="),
        ("h0 + tile // TILES", "h0"),
        ("tl.range(0, HEADS * TILES,", "tl.range(0, HEADS * TILES - 1,"),
        ("tl.store(at + CHUNK, step", "tl.store(at + CHUNK, G"),
        ("mask=real[:, None] & in_p[None, :])\n", "mask=(t < tokens)[:, None] & in_p[None, :])\n"),
        ("(c - before) * CHUNK", "c * CHUNK", "chunk_place"),
        ("(before <= c) & (c < before + count)", "(before < c) & (c < before + count)", "chunk_place"),
        ("(end - begin + CHUNK - 1) // CHUNK", "(end - begin) // CHUNK", "_sequences"),
    ],
}  # fmt: skip
