"""Mamba-3 of the engine over the kernels: each operation beside PyTorch's, and what a fault in between does to it."""

from collections.abc import Iterable
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor

from ssmspec_fast.layers.mamba3 import Mamba3 as ByTorch
from ssmspec_fast.layers.mamba3 import Mamba3Inputs, Mamba3Params
from ssmspec_fast.operations import triton_recurrences as engine
from ssmspec_fast.operations.arithmetic import Arithmetic
from ssmspec_kernels.mamba3.mamba3_commit import mamba3_commit
from ssmspec_kernels.row import taken
from tests.kernels.mamba3_subjects import CONSTANTS, SCAN, WEIGHTS, Options
from tests.trees import forest, tree_mask

FORMS = [
    Options(t=3, b=2, padding=False),
    Options(t=3, b=2, r=2, g=2, halves=True, maps=True, z=True, padding=False, seed=1),
]
NAMES = ("x", "dt", "A", "trap", "angle", "B", "C", "z")


def inputs_of(parts: Iterable[Any]) -> Mamba3Inputs:
    return Mamba3Inputs(*parts)


def given(o: Options) -> tuple[Tensor, Mamba3Inputs, Mamba3Params, Tensor]:
    """A pool without NaN, inputs, parameters and slots as the engine has them."""
    call = SCAN.draw(o)
    inputs = inputs_of(None if (x := call.given.get(name)) is None else x.clone() for name in NAMES)
    weights: dict[str, Any] = {name: call.given.get(name) for name in WEIGHTS}
    params = Mamba3Params(**weights, **CONSTANTS, halves=o.halves)
    return call["S"].nan_to_num(0.5), inputs, params, call["slots"].long()


def same(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)


def both(o: Options, bitwise: bool = False) -> tuple[Any, ...]:
    return engine.Mamba3(bitwise), ByTorch(Arithmetic(False)), *given(o)


@pytest.mark.parametrize("o", FORMS, ids=str)
def test_windows_states_and_prompts_are_those_of_pytorch(o: Options) -> None:
    kernels, by_torch, S, inputs, params, slots = both(o)
    pools = S.clone(), S.clone()
    ys = [each.scan(pool, inputs, params, slots=slots) for each, pool in zip((kernels, by_torch), pools, strict=True)]
    same(*ys)
    same(*pools)
    places = torch.arange(len(S), len(S) + o.b * o.t).view(o.b, o.t)
    room = torch.cat([S, S.new_full((o.b * o.t, *S.shape[1:]), 0.25)])
    pools = room.clone(), room.clone()
    for each, pool in zip((kernels, by_torch), pools, strict=True):
        each.snapshots(pool, inputs, params, places, slots=slots)
    same(*pools)
    run = inputs_of(None if x is None else x.flatten(0, 1)[None] for x in inputs)
    pools, bounds, fresh = (S.clone(), S.clone()), torch.tensor([0, 2, o.b * o.t]), torch.tensor([True, False])
    ys = [
        each.packed(pool, run, params, bounds, slots=slots, fresh=fresh)
        for each, pool in zip((kernels, by_torch), pools, strict=True)
    ]
    same(*ys)
    same(*pools)


@pytest.mark.parametrize("bitwise", [False, True])
@pytest.mark.parametrize("o", FORMS, ids=str)
def test_a_tree_is_that_of_pytorch(o: Options, bitwise: bool) -> None:
    kernels, by_torch, S, inputs, params, slots = both(o, bitwise)
    parents = forest(replace(o, seed=3))
    ancestors = torch.from_numpy(tree_mask(parents))
    told = torch.from_numpy(parents).long(), ancestors
    same(*(each.tree(S, inputs, params, *told, slots=slots) for each in (kernels, by_torch)))


@pytest.mark.parametrize("o", FORMS, ids=str)
def test_a_commit_of_two_layers_is_two_scans(o: Options) -> None:
    """The second layer has other parameters, and each row accepts another number of tokens."""
    kernels, by_torch, S, inputs, params, slots = both(o)
    _, other, more, _ = given(replace(o, seed=o.seed + 7))
    written = [name for name in kernels.replayed if getattr(params, name) is not None]
    stacked = {name: torch.stack([getattr(params, name), getattr(more, name)]) for name in written}
    whole = inputs_of(None if a is None or b is None else torch.stack([a, b]) for a, b in zip(inputs, other, strict=True))
    states, advanced = torch.stack([S, S]), torch.tensor([1, 2])
    kernels.commit(states, whole, params._replace(**stacked), slots=slots, advanced=advanced)
    for number, (tokens, weights) in enumerate(((inputs, params), (other, more))):
        wanted, live = S.clone(), torch.arange(o.t) < advanced[:, None]
        by_torch.scan(wanted, tokens, weights, slots=slots, live=live)
        same(states[number], wanted)


@pytest.mark.parametrize("o", FORMS, ids=str)
def test_windows_in_a_ring_and_its_flush_are_scans(o: Options) -> None:
    kernels, by_torch, S, inputs, params, slots = both(o)
    room = inputs_of(None if x is None else x.new_zeros((len(S), 5, *x.shape[2:])) for x in inputs)
    ring = kernels.new_ring(room, torch.zeros(len(S)).int(), torch.zeros(len(S)).int())
    pool, wanted, ys = S.clone(), S.clone(), []
    for begin in (0, 2):
        part = inputs_of(None if x is None else x[:, begin : begin + 2] for x in inputs)
        ys.append(kernels.buffered(pool, ring, part, params, window=2, slots=slots, lengths=None))
        ring.held[slots] = begin + 2
    same(torch.cat(ys, dim=1), by_torch.scan(wanted, inputs, params, slots=slots))
    ring.held[slots], pool = o.t, S.clone()
    kernels.flush(pool, ring, params, slots=slots)
    same(pool, wanted)


FORGOTTEN = ["up", "gate", "down", "z", "D", "halves"]


@pytest.mark.parametrize("name", FORGOTTEN)
def test_a_planted_argument_that_is_forgotten_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten = {name: False if name == "halves" else None}
    monkeypatch.setattr(engine, "taken", lambda *args, **named: taken(*args, **named) | forgotten)
    with pytest.raises(AssertionError):
        test_windows_states_and_prompts_are_those_of_pytorch(FORMS[1])


def test_a_layer_that_commits_with_the_parameters_of_another_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    @wraps(mamba3_commit)
    def of_the_first(**arguments: Any) -> None:
        names = engine.Mamba3(False).replayed
        firsts = {name: x[:1].expand_as(x).contiguous() for name in names if (x := arguments[name]) is not None}
        mamba3_commit(**arguments | firsts)

    monkeypatch.setattr(engine.Mamba3, "kernels", {**engine.Mamba3.kernels, "commit": of_the_first})
    with pytest.raises(AssertionError):
        test_a_commit_of_two_layers_is_two_scans(FORMS[1])
