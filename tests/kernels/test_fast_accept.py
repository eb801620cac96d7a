"""The engine's sampled rules over the kernel: what `accept_sampled` decides is what the torch rule decides."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ssmspec_fast.accept.multi_step import MultiStep
from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_fast.operations.triton_ops import TritonOperations
from tests.fast.test_accept import proposal_of, sequences_of

OPERATIONS = TorchOperations()
OVER_KERNELS = SimpleNamespace(tree_mask=OPERATIONS.tree_mask, accept_sampled=TritonOperations().accept_sampled)


@pytest.mark.parametrize("law", ["iid", "without_replacement", "point_mass", "naive"])
@pytest.mark.interpreter
def test_the_kernel_and_the_torch_rule_decide_alike(law: str) -> None:
    """Through the operations that offer it, in the interpreter; eos, stop and budget are cut behind either."""
    rule = Naive if law == "naive" else MultiStep
    given = proposal_of(3, 4, 6, 5, "iid" if law == "naive" else law)
    logits = torch.from_numpy(np.random.default_rng(4).normal(size=(4, 6, 5))).float()
    found = []
    for operations in (OPERATIONS, OVER_KERNELS):
        sequences = sequences_of([0, 1, 2, 3], [2, 3, 4, 5], budget=3, stop=((2, 1),))
        found.append(rule(seed=2)(given, logits, sequences, operations).run)
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))
