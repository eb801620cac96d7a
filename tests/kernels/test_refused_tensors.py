"""Every tensor of a launcher is looked at before anything is written: its axes, its type, and the type of those beside it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any, Literal

import pytest
from torch import Tensor

from ssmspec_kernels.attention import tree_attention
from ssmspec_kernels.kda import kda_tree
from ssmspec_kernels.ssd.ring import ssd_buffered
from ssmspec_ref.errors import PrecisionError, ShapeMismatch
from tests.kernels.mutants import mutated
from tests.kernels.tensors import Kept
from tests.kernels.test_outputs import CALLS, Arguments

HOLDERS = ("ring", "cache")
PRODUCTS = {
    "causal_attention": "q K V",
    "delta_buffered": "q k v ring.k",
    "delta_buffered_step": "q k v ring.k",
    "delta_chunk_scan": "q k v",
    "delta_chunked": "q k v",
    "delta_tree": "q k v",
    "kda_tree": "q k v",
    "linear_added": "x W",
    "linear_rows": "x W",
    "ssd_buffered": "x B C ring.x ring.B",
    "ssd_buffered_step": "x B C ring.x ring.B",
    "ssd_chunk_scan": "x B C",
    "ssd_replay_scan": "x B C cache.x cache.B",
    "ssd_tree_scan": "x B C",
    "ssd_window": "x B C",
    "tree_attention": "q k v K V",
}
"""The operands of a launcher's matrix products, which have one type."""
Change = Literal["an axis more", "a type that no kernel takes", "a type of its own"]


def tensors(given: Arguments) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a call, those of a ring or a cache under its name."""
    for name, x in given.items():
        inner = {} if name not in HOLDERS else x._asdict() if hasattr(x, "_asdict") else vars(x)
        yield from ((f"{name}.{of}", y) for of, y in inner.items() if isinstance(y, Tensor))
        if isinstance(x, Tensor):
            yield name, x


def changed(given: Arguments, name: str, x: Tensor) -> Arguments:
    holder, _, of = name.rpartition(".")
    if not holder:
        return given | {name: x}
    held = given[holder]
    return given | {holder: held._replace(**{of: x}) if hasattr(held, "_replace") else replace(held, **{of: x})}


def made(x: Tensor, change: Change) -> Tensor:
    if change == "an axis more":
        return x[None]
    if change == "a type of its own":
        return x.half()
    return x.double() if x.is_floating_point() else x.float()


def check(module: ModuleType, drawn: Callable[[], Arguments], change: Change, names: tuple[str, ...] | None = None) -> None:
    """Each tensor with the change, alone, is refused, and nothing is written."""
    launcher, given = getattr(module, module.__name__.rpartition(".")[2]), drawn()
    kept, found = Kept(**{name.replace(".", "_"): x for name, x in tensors(given)}), dict(tensors(given))
    for name in found if names is None else names:
        error: type[Exception] = ShapeMismatch if change == "an axis more" else PrecisionError
        try:
            launcher(**changed(given, name, made(found[name], change)))
        except error:
            continue
        except Exception as other:
            raise AssertionError(f"{name} with {change} raised {type(other).__name__}") from other
        raise AssertionError(f"{name} with {change} was taken")
    kept.check()


@pytest.mark.parametrize("change", ["an axis more", "a type that no kernel takes"])
@pytest.mark.parametrize(("module", "drawn"), CALLS, ids=[module.__name__ for module, _ in CALLS])
def test_a_tensor_of_a_wrong_form_is_refused(module: ModuleType, drawn: Callable[[], Arguments], change: Change) -> None:
    check(module, drawn, change)


OPERANDS = [(m, drawn, PRODUCTS[n]) for m, drawn in CALLS if (n := m.__name__.rpartition(".")[2]) in PRODUCTS]


@pytest.mark.parametrize(("module", "drawn", "names"), OPERANDS, ids=[module.__name__ for module, *_ in OPERANDS])
def test_an_operand_of_another_type_is_refused(module: ModuleType, drawn: Callable[[], Arguments], names: str) -> None:
    check(module, drawn, "a type of its own", tuple(names.split()))


def test_every_launcher_with_products_has_a_call() -> None:
    assert len(OPERANDS) == len(PRODUCTS)


FAULTS: list[tuple[ModuleType, str, str, Change, Any]] = [
    (kda_tree, "check_kda(S, q, k,", "check_kda(S, k, k,", "an axis more", ("q",)),
    (tree_attention, "q.dtype == k.dtype == v.dtype", "q.dtype == q.dtype == v.dtype", "a type of its own", ("k",)),
    (ssd_buffered, "ring.check_types(x, B, C)", "pass", "a type of its own", ("ring.x",)),
    (tree_attention, '("length", length, "s"', '("length", None, "s"', "a type that no kernel takes", None),
]


@pytest.mark.parametrize(("module", "old", "new", "change", "names"), FAULTS, ids=[new for _, _, new, *_ in FAULTS])
def test_a_planted_gap_in_the_checks_is_caught(
    module: ModuleType, old: str, new: str, change: Change, names: tuple[str, ...] | None
) -> None:
    drawn = next(drawn for found, drawn in CALLS if found is module)
    with pytest.raises(AssertionError):
        check(mutated(module, old, new), drawn, change, names)
