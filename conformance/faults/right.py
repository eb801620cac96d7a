"""The right operations that mistakes change, from the reference's parts."""

from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any

import numpy as np

from ssmspec_ref import conv, packed
from ssmspec_ref.layers.recurrences import RECURRENCES
from ssmspec_ref.shapes import Ancestors, Array, Parents
from ssmspec_ref.tree import ancestors as ancestors_of
from ssmspec_ref.tree import paths

from ..adapters.reference_parts import acceptance, attention, drafts, processors
from ..adapters.reference_parts.pools import no_states, no_windows, pooled

Runs = tuple[Array, Array]


def packed_scan(rule: str, S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> Runs:
    """Every sequence of a packed run from its own state."""
    begin = np.where(fresh.reshape(-1, *[1] * (S.ndim - 1)), 0.0, S)
    y, S_next, _ = packed.scan(RECURRENCES[rule].definition, begin, run, np.diff(bounds), params)
    return y, S_next


def along_paths(rule: str, S: Array, window: Any, ancestors: Ancestors, params: Any) -> Array:
    """Every node of a tree at the end of its own path."""
    scan = RECURRENCES[rule].definition.scan
    return paths.scan(lambda state, path: scan(state, path, params), S, window, ancestors)


def conv_along_ancestors(M: Array, u: Array, ancestors: Ancestors, params: Any) -> Array:
    return paths.scan(lambda state, path: conv.scan(state, path, params), M, u, ancestors)


def conv_along_paths(M: Array, u: Array, parents: Parents, params: Any) -> Array:
    return conv_along_ancestors(M, u, ancestors_of(parents), params)


def committed(run: Callable[..., Array]) -> Callable[..., Array]:
    """A commit over pools too."""
    over = pooled(lambda *given: (run(*given),))
    return wraps(run)(lambda *given: over(*given)[0])


OTHERS: dict[str, Callable[..., Any]] = {
    "conv.verify_tree": conv_along_paths,
    "conv.commit": committed(conv.commit),
    "conv.commit_path": committed(conv.commit_path),
    "attention.verify_tree": attention.verify_tree,
    "attention.compact": attention.compact,
    "attention.positions": attention.positions,
    "acceptance.greedy": acceptance.accept_greedy,
    "acceptance.greedy_logits": acceptance.accept_logits,
    "acceptance.sampled": acceptance.accept_sampled,
    "acceptance.process": processors.process,
    "acceptance.process_rows": processors.process_rows,
    "draft.lookup": drafts.lookup,
}


@cache
def right(operation: str) -> Callable[..., Any]:
    """The right operation. Scans and steps take a pool of states, or None for zeros, too. Raises: KeyError."""
    rule, _, name = operation.partition(".")
    if operation in OTHERS:
        return OTHERS[operation]
    if rule == "conv":
        return over_pools(getattr(conv, name), no_windows)
    if name == "verify_tree":
        return partial(along_paths, rule)
    if name == "scan_packed":
        return over_pools(partial(packed_scan, rule), None)
    kind = RECURRENCES[rule]
    return over_pools(getattr(kind.definition, name.removesuffix("_masked")), no_states(kind))


def over_pools(run: Callable[..., Any], zeros: Callable[..., Array] | None) -> Callable[..., Any]:
    """An operation over pools, whose parameters have the names of those of the operation."""
    return wraps(run)(pooled(run, zeros))
