"""`kv_compact` against the oracle's compaction: every bit of the cache."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance.interpreter.memory import watch
from ssmspec_kernels.attention import kv_compact as module
from ssmspec_ref import attention

from . import accept_cases, tensors
from .mutants import caught, mutated

I32, I64 = torch.int32, torch.int64
CASES = [
    (1, 7, 6, 2, 5, "fp32", I64, True, None),
    (2, 5, 13, 3, 24, "bf16", I32, True, 16),
    (3, 4, 40, 1, 80, "fp16", I64, False, 32),
    (4, 3, 1, 2, 3, "fp32", I32, True, None),
    (5, 3, 128, 1, 2, "bf16", I64, True, 1),
]


class Case:
    """Paths of every length, in a pool of which some slots are used, in any order; dead slots hold NaN."""

    def __init__(
        self,
        seed: int,
        rows: int,
        nodes: int,
        groups: int,
        channels: int,
        form: str,
        index: torch.dtype,
        slots: bool,
        block_e: int | None,
    ) -> None:
        rng = np.random.default_rng(seed)
        pool, cache = rows + 2 if slots else rows, nodes + 9
        self.nodes, self.block_e = nodes, block_e
        self.slots = rng.permutation(pool)[:rows] if slots else np.arange(rows)
        if slots and rows > 2:
            self.slots[1] = -1
        self.length = rng.integers(0, cache - nodes + 1, pool)
        self.path = np.full((rows, nodes), -1)
        for b in range(rows):
            behind = 1 + rng.permutation(nodes - 1)[: rng.integers(0, nodes)]
            path = np.sort(np.concatenate([[0], behind])) if b % 3 else np.arange(rng.integers(0, nodes + 1) if b else nodes)
            self.path[b, : len(path)] = path
        values = [tensors.draw(rng, pool, cache, groups, channels, forms=(form,)) for _ in "KV"]
        for x in values:
            for s, T in enumerate(self.length):
                x[s, T + nodes :] = np.nan
        self.K, self.V = (tensors.strided(x, form) for x in values)
        self.tensors: dict[str, Any] = {
            "path": accept_cases.gapped(self.path, index),
            "length": accept_cases.vector(self.length, index),
            "slots": torch.from_numpy(self.slots).to(index) if slots else None,
            "advanced_length": accept_cases.vector(np.full(pool, accept_cases.SENTINEL), index),
        }

    def call(self, kernel: ModuleType) -> None:
        given = dict(self.tensors)
        path, length = given.pop("path"), given.pop("length")
        kernel.kv_compact(self.K, self.V, path, length, **given, block_e=self.block_e)

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        """The caches and the lengths, by the oracle, row by row; slots that no row has stay as they are."""
        K, V = self.K.clone(), self.V.clone()
        length = torch.full_like(self.tensors["advanced_length"], accept_cases.SENTINEL)
        for b, slot in enumerate(self.slots):
            if slot >= 0:
                row = slice(slot, slot + 1)
                old_K, old_V = (x[row].double().numpy() for x in (self.K, self.V))
                state = attention.compact(attention.KVState(old_K, old_V, self.length[row]), self.path[b : b + 1])
                for x, moved in ((K, state.K), (V, state.V)):
                    x[row] = torch.where(x[row].isnan(), x[row], torch.from_numpy(moved).to(x.dtype))
                length[slot] = int(state.length[0])
        return K, V, length


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(tensors.INTS[x.element_size()])


def judge(kernel: ModuleType, case: tuple[Any, ...]) -> bool:
    drawn = Case(*case)
    wanted = drawn.expected()
    kept = tensors.Kept(K=drawn.K, V=drawn.V, **drawn.tensors)
    drawn.call(kernel)
    kept.check(K=slice(None), V=slice(None), advanced_length=slice(None))
    found = (drawn.K, drawn.V, drawn.tensors["advanced_length"])
    return all(torch.equal(bits(x), bits(y)) for x, y in zip(found, wanted, strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_bit_of_the_cache_is_as_the_oracle_moves_it(case: tuple[Any, ...]) -> None:
    assert judge(module, case)


def test_a_path_that_does_not_ascend_loses_no_source() -> None:
    K = torch.arange(12.0).reshape(1, 6, 1, 2)
    V = -K.clone()
    path = torch.tensor([[3, 1, 0, 2, -1, -1]])
    module.kv_compact(K, V, path, torch.tensor([2]))
    assert K[0, :, 0, 0].tolist() == [0, 2, 10, 6, 4, 8]
    assert torch.equal(V, -K)


def test_what_lies_behind_the_end_of_the_cache_is_not_reached() -> None:
    K, V = torch.arange(8.0).reshape(1, 4, 1, 2), torch.zeros(1, 4, 1, 2)
    path, length = torch.tensor([[0, 2, 3]]), torch.tensor([2])
    with watch(K=K, V=V, path=path, length=length) as seen:
        module.kv_compact(K, V, path, length)
    assert seen.outside == []
    assert torch.equal(K, torch.arange(8.0).reshape(1, 4, 1, 2))


def test_heads_beyond_2_to_the_31_elements_are_moved() -> None:
    K, path, length = torch.arange(15.0).reshape(1, 5, 3, 1).half(), torch.tensor([[0, 3]]), torch.tensor([1])
    apart = tensors.far(K, 2)
    for keys in (K, apart):
        module.kv_compact(keys, torch.zeros_like(K), path, length)
    assert torch.equal(apart, K)
    assert K[0, :, 2, 0].tolist() == [2, 5, 14, 11, 14]


def bytes_fit(kernel: ModuleType, io: str, index: torch.dtype, g: int, e: int, block_e: int | None) -> bool:
    K, V = (torch.zeros(4, 30, g, e, dtype=tensors.DTYPES[io]) for _ in "KV")
    path = torch.full((4, 9), -1, dtype=index)
    path[0, :4], path[1, :5] = torch.tensor([0, 2, 4, 8]), torch.arange(5)
    length = torch.tensor([3, 0, 21, 5], dtype=index)
    with watch(K=K, V=V, path=path, length=length) as seen:
        kernel.kv_compact(K, V, path, length, block_e=block_e)
    size = {"io": tensors.BYTES[io], "index": index.itemsize}
    requested = {x for name in "KV" for x in (seen.loaded(name).requested, seen.stored(name).requested)}
    stray = seen.outside or seen.races or requested != {3 * g * e * size["io"]}
    return not stray and seen.distinct_bytes() == module.traffic_bytes(4, 9, 3, g, e, **size)


@pytest.mark.parametrize("sizes", [("bf16", I64, 2, 20, 16), ("fp32", I32, 3, 7, None)])
def test_only_the_slots_that_move_are_read_and_written_once_each(sizes: Any) -> None:
    assert bytes_fit(module, *sizes)


MUTANTS = {
    "values stay": ("tl.store(of_V + (start + m)[:, None] * stride_V_l, v, mask=inside)", "pass"),
    "values come from the keys' nodes' ranks": ("v = tl.load(of_V + (start + node)", "v = tl.load(of_V + (start + m)"),
    "one slot too far": ("of_K + (start + m)[:, None]", "of_K + (start + m + 1)[:, None]"),
    "source without the committed length": ("of_K + (start + node)[:, None]", "of_K + node[:, None]"),
    "the cache of the row, not of the slot": ("of_K = K + slot * stride_K_s", "of_K = K + b * stride_K_s"),
    "the first head's keys": ("+ g * stride_K_g + e", "+ e"),
    "the last rank stays": ("mask=m < T, other=-1", "mask=m < T - 1, other=-1"),
    "the first row's path": ("path + b * stride_path_b", "path"),
    "the last channel stays": ("moves[:, None] & (e < E)[None, :]", "moves[:, None] & (e < E - 1)[None, :]"),
    "channels past the end": ("moves[:, None] & (e < E)[None, :]", "moves[:, None] & (e <= E)[None, :]"),
    "the length counts the ranks that move": ("(node >= 0).to(tl.int64)", "moves.to(tl.int64)"),
    "the length is the path's": ("(start + count).to", "count.to"),
    "padding rows move": ("if slot >= 0:", "if slot >= -1:"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_caught(name: str) -> None:
    checks: list[Any] = [lambda kernel: bytes_fit(kernel, "bf16", I64, 2, 20, 16)]
    checks += [lambda kernel, case=case: judge(kernel, case) for case in CASES[:3]]
    assert caught(mutated(module, *MUTANTS[name]), lambda kernel, check: check(kernel), checks)
