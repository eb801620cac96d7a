"""The engine's sampled rules over the kernel: what `accept_sampled` decides is what the torch rule decides."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_fast.accept import fused
from ssmspec_fast.accept.multi_step import MultiStep
from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sampling import Sampling
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


@pytest.mark.parametrize("stops", [(), ((2, 1),)], ids=["one launch", "cut behind it"])
@pytest.mark.parametrize(
    ("rule", "shape", "rows"),
    [(Naive, (4, 6), 1), (Naive, (4, 6), 2), (Naive, (4, 1), 1), (MultiStep, (4, 1), 1)],
    ids=["trees", "two rows", "roots", "roots of another rule"],
)
@pytest.mark.interpreter
def test_drawn_runs_are_those_of_the_torch_rule(
    rule: type[Naive | MultiStep], shape: tuple[int, int], rows: int, stops: tuple[tuple[int, ...], ...]
) -> None:
    """With ends, budgets, padding, sequences that have ended, and nodes whose logits are not finite."""
    b, t = shape
    given = proposal_of(3, b, t, 5, "iid")
    slots = torch.tensor([0, 1, 2, -1][: b // rows]).repeat_interleave(rows)
    given = given._replace(window=given.window._replace(slots=slots, drafts=rows))
    rng = np.random.default_rng(4)
    for temperature in (1.0, 0.0):
        logits = torch.from_numpy(rng.normal(size=(b, t, 5))).float()
        logits[:rows, 0, 3] = float("nan")
        if rows == 1:  # of several rows another one may be the longest then
            logits[1, t // 2, 1] = float("nan")
        found = []
        for operations in (OPERATIONS, OVER_KERNELS):
            sequences = sequences_of([0, 1, 2, 3], [2, 3, 4, 5], budget=3, stop=stops)
            sequences.set(slice(None), Settings(3, eos=(0, 1), stop=stops))
            sequences.ask([Settings(3, eos=(0, 1), stop=stops)])
            sequences.ended[2] = True
            made = rule(Sampling(temperature), seed=2)(given, logits.clone(), sequences, operations)
            live = made.slots >= 0
            over = sequences.ended[made.slots.clamp_min(0)] | made.run.ended
            found.append([x[live] for x in (made.run.tokens, made.run.advanced, over)])
        assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


def test_planted_faults_of_drawn_runs_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root whose logits are not finite counts as one that is; the ends are forgotten; a sequence that has ended goes on."""
    one, rule = fused.verdict, test_drawn_runs_are_those_of_the_torch_rule

    def finite(launch: Any, window: Any, bad: Any, *more: Any) -> Any:
        return one(launch, window, bad & False, *more)

    def without(name: str) -> Any:
        return lambda launch, *more: one(lambda *given, **named: launch(*given, **named | {name: None}), *more)

    for plant in (finite, without("eos"), without("ended")):
        monkeypatch.setattr(fused, "verdict", plant)
        with pytest.raises(AssertionError):
            rule(Naive, (4, 6), 1, ())
