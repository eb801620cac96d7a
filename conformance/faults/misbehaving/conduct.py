"""Implementations that misbehave: wrong shapes, NaN, errors, inputs written, formats not as declared, nothing computed."""

from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref import delta, selective, ssd
from ssmspec_ref.contract import Adapter, NumericContract
from ssmspec_ref.shapes import Array

from ...mistakes.mistake import after, before, instead
from ..fault import FP32, adapter_of, planted
from ..recurrences.arithmetic import right

BF16 = NumericContract(state="bf16", stored_every_token=True)


def nan_output(y: Array) -> Array:
    """One NaN, in the last place of the output."""
    y[(-1,) * y.ndim] = np.nan
    return y


def mutates_input(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The state is advanced in place, in the caller's array."""
    y, S_next = right(S, window, params)
    S[...] = S_next
    return y, S_next


def raises(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Raises an exception."""
    raise RuntimeError("no kernel image is available for execution on the device")


def zeros(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Nothing is computed. ScalingIntelligence/KernelBench#165."""
    return np.zeros_like(window.x, dtype=np.float32), np.zeros_like(S, dtype=np.float32)


def one_output(S: Array, window: Any, params: Any) -> Array:
    """The state is not returned."""
    return right(S, window, params)[0]


def tree_as_chain(rule: Any, S: Array, window: Any, ancestors: Array, params: Any) -> Array:
    """Every node sees all nodes before it: a lower-triangular mask instead of the tree's."""
    live = np.einsum("btt -> bt", ancestors)
    with np.errstate(all="ignore"):  # padding that is read holds huge values
        return rule.scan(S, window, params, live)[0].astype(np.float32)


FAULTS = planted(
    *(
        (run, "ssd.scan", "CHEAT" if run is zeros else "CONDUCT", contract)
        for run, contract in (
            (after(y=nan_output), FP32),
            (mutates_input, FP32),
            (
                after(
                    "wrong_shape",
                    "The state is returned as (b h n p).",
                    S_next=lambda S_next: S_next.swapaxes(2, 3)[:, :, :, :, None],
                ),
                FP32,
            ),
            (
                after(
                    "wrong_dtype",
                    "Outputs in half precision where float32 is declared.",
                    y=lambda y: y.astype(np.float32).astype(np.float16),
                ),
                FP32,
            ),
            (raises, FP32),
            (zeros, FP32),
            (one_output, FP32),
            (
                before(
                    "keeps_wider_state",
                    "bf16 is declared for the state, but float32 values are returned: the bound would be too wide.",
                ),
                BF16,
            ),
        )
    ),
    (
        before(
            "keeps_rejected",
            "The window of the convolution keeps one rejected token. vllm-project/vllm#50272.",
            advanced=lambda advanced, u: np.minimum(advanced + 1, u.shape[1]),
        ),
        "conv.commit",
        "CONV",
        FP32,
    ),
    *(
        (
            instead("tree_as_chain", tree_as_chain.__doc__ or "", partial(tree_as_chain, rule)),
            f"{name}.verify_tree",
            "TREE-MASK",
            FP32,
        )
        for name, rule in (("ssd", ssd), ("delta", delta), ("selective", selective))
    ),
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
    return adapter_of("conduct", FAULTS)
