"""SSD over several tokens at once equals SSD token by token, and the engine on it says what it says on that."""

import pytest
import torch
from torch import Tensor

from ssmspec_fast.cli import choices, demo
from ssmspec_fast.cli.shipped import that_ships
from ssmspec_fast.engine.traces import run
from ssmspec_fast.operations import SSDInputs, SSDParams
from ssmspec_fast.operations import torch_windows as at_once
from ssmspec_fast.operations.torch_ops import TorchOperations

B, H, P, N, G = 3, 4, 3, 5, 2
SLOTS = torch.tensor([4, -1, 0])


def drawn(t: int, seed: int = 0) -> tuple[Tensor, SSDInputs, SSDParams]:
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    inputs = SSDInputs(normal(B, t, H, P), normal(B, t, H), normal(B, t, G, N), normal(B, t, G, N), None)
    params = SSDParams(A=-normal(H).exp(), D=normal(H), dt_bias=normal(H), dt_softplus=True)
    return normal(6 + B * t, H, P, N), inputs, params


def both(name: str, t: int, live: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    """Outputs and states of the two, by one operation."""
    found = []
    for operations in (TorchOperations(), TorchOperations(windows=True)):
        S, inputs, params = drawn(t)
        more = {"places": 6 + torch.arange(B * t).view(B, t)} if name == "snapshots" else {}
        y = getattr(operations.recurrences["ssd"], name)(S, inputs, params, slots=SLOTS, live=live, **more)
        found.append((y[SLOTS >= 0], S))
    return found


@pytest.mark.parametrize("t", [1, 2, 5, at_once.TOKENS + 6])
@pytest.mark.parametrize("some", [False, True], ids=["all live", "some live"])
@pytest.mark.parametrize("name", ["scan", "snapshots"])
def test_tokens_at_once_are_tokens_one_by_one(name: str, some: bool, t: int) -> None:
    live = torch.rand((B, t), generator=torch.Generator().manual_seed(1)) < 0.7 if some else None
    (y, S), (ours, states) = both(name, t, live)
    # At most 70 products below 1 and sums of 70 terms of size 20 on either side, in float64.
    bound = 4 * t * 2**-53 * 20 * t
    assert float((y - ours).abs().max()) <= bound
    assert float((S - states).abs().max()) <= bound
    assert float((S - drawn(t)[0]).abs().max()) > 0.1


def test_a_planted_decay_that_is_one_token_late_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    decays = at_once.decays
    monkeypatch.setattr(at_once, "decays", lambda tokens: (decays(tokens)[0].roll(1, 2), decays(tokens)[1]))
    (y, _), (ours, _) = both("scan", 5, None)
    assert float((y - ours).abs().max()) > 0.01


def test_bitwise_mode_takes_no_tokens_at_once() -> None:
    assert type(choices.operations("bitwise", "cpu").recurrences["ssd"]) is type(TorchOperations().recurrences["ssd"])
    assert type(TorchOperations(bitwise=True, windows=True).recurrences["ssd"]) is type(TorchOperations().recurrences["ssd"])
    assert isinstance(choices.operations("fast", "cpu").recurrences["ssd"], at_once.SSDWindows)


def test_the_pair_of_the_demo_is_plain_decoding_in_either_mode() -> None:
    target, drafter = that_ships(demo.TARGET), that_ships(demo.DRAFTER)
    plain = {mode: run(target, [demo.PROMPT], 16, mode=mode, dtype="float32") for mode in choices.MODES}
    assert plain["bitwise"].tokens == plain["fast"].tokens
    for method in ("snapshots", "activation-replay"):
        fast = run(target, [demo.PROMPT], 16, mode="fast", dtype="float32", drafter=drafter, method=method)
        assert fast.tokens == plain["fast"].tokens
        assert fast.steps < 16
