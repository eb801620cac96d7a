"""Implementations that misbehave: wrong shapes, NaN, errors, inputs written, formats not as declared, nothing computed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref import conv, delta, selective, ssd
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject
from ssmspec_ref.shapes import Array

from ..recurrences.arithmetic import right

FP32 = NumericContract()
BF16 = NumericContract(state="bf16", stored_every_token=True)


def nan_output(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """One NaN, in the last place of the output."""
    y, S_next = right(S, window, params)
    y[(-1,) * y.ndim] = np.nan
    return y, S_next


def mutates_input(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The state is advanced in place, in the caller's array."""
    y, S_next = right(S, window, params)
    S[...] = S_next
    return y, S_next


def wrong_shape(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The state is returned as (b h n p)."""
    y, S_next = right(S, window, params)
    return y, S_next.swapaxes(2, 3)[:, :, :, :, None]


def wrong_dtype(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Outputs in half precision where float32 is declared."""
    y, S_next = right(S, window, params)
    return y.astype(np.float16), S_next


def raises(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Raises an exception."""
    raise RuntimeError("no kernel image is available for execution on the device")


def zeros(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Nothing is computed. ScalingIntelligence/KernelBench#165."""
    return np.zeros_like(window.x, dtype=np.float32), np.zeros_like(S, dtype=np.float32)


def one_output(S: Array, window: Any, params: Any) -> Array:
    """The state is not returned."""
    return right(S, window, params)[0]


def keeps_wider_state(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """bf16 is declared for the state, but float32 values are returned: the bound would be too wide."""
    return right(S, window, params)


def keeps_rejected(M: Array, u: Array, advanced: Array) -> Array:
    """The window of the convolution keeps one rejected token. vllm-project/vllm#50272."""
    return conv.commit(M, u, np.minimum(advanced + 1, u.shape[1])).astype(np.float32)


def tree_as_chain(rule: Any, S: Array, window: Any, ancestors: Array, params: Any) -> Array:
    """Every node sees all nodes before it: a lower-triangular mask instead of the tree's."""
    live = np.einsum("btt -> bt", ancestors)
    with np.errstate(all="ignore"):  # padding that is read holds huge values
        return rule.scan(S, window, params, live)[0].astype(np.float32)


SCANS: tuple[tuple[Callable[..., Any], NumericContract], ...] = (
    (nan_output, FP32),
    (mutates_input, FP32),
    (wrong_shape, FP32),
    (wrong_dtype, FP32),
    (raises, FP32),
    (zeros, FP32),
    (one_output, FP32),
    (keeps_wider_state, BF16),
)
KINDS = {
    "nan_output": "nan",
    "mutates_input": "mutated",
    "wrong_shape": "shape",
    "wrong_dtype": "dtype",
    "raises": "error",
    "zeros": "bound",
    "one_output": "outputs",
    "keeps_wider_state": "dtype",
    "keeps_rejected": "bound",
    "tree_as_chain": "bound",
}
"""How each is caught."""


def adapter() -> Adapter:
    scans = [Subject(run.__name__, {"ssd.scan": Capability(run, contract)}) for run, contract in SCANS]
    trees = [
        Subject("tree_as_chain", {f"{name}.verify_tree": Capability(partial(tree_as_chain, rule), FP32)})
        for name, rule in (("ssd", ssd), ("delta", delta), ("selective", selective))
    ]
    commit = Subject("keeps_rejected", {"conv.commit": Capability(keeps_rejected, FP32)})
    return Adapter("faulty conduct", "1", (*scans, commit, *trees))
