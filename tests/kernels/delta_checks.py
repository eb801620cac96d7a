"""What every kernel of the delta rule that advances a state is held to."""

from dataclasses import replace
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np
import torch

from conformance.interpreter.memory import watch
from tests.kernels import delta_cases as cases
from tests.kernels.delta_cases import Options


def check_bound(kernel: Any, o: Options, **contract: Any) -> None:
    """Output and state within the bound; nothing else of the pool, of the output, or of any input has changed."""
    case = cases.draw(o)
    y, S = case.bound(**contract)
    named = case.slots.numpy()[case.rows]
    before = {name: cases.whole(getattr(case, name)).clone() for name in ("q", "k", "v", "g", "beta", "S", "out")}
    assert case.call(kernel) is case.out
    cases.assert_within("o", case.out, y, case.rows)
    cases.assert_within("S", case.S, S, named)
    for x in (case.S[named], case.out[case.rows]):
        assert torch.isfinite(x).all()
    fresh = cases.draw(o)
    case.S[named], case.out[case.rows] = fresh.S[named], fresh.out[case.rows]
    for name, x in before.items():
        assert cases.untouched(x, cases.whole(getattr(case, name))), f"{name} was written where it must not be"


def check_exact(kernel: Any, o: Options, **contract: Any) -> None:
    case = cases.ints(o)
    y, S = case.bound(**contract)
    case.call(kernel)
    assert np.array_equal(cases.doubles(case.out), y.value)
    assert np.array_equal(cases.doubles(case.S)[case.slots.numpy()], S.value)


def check_steep(kernel: Any, o: Options, **contract: Any) -> None:
    """What a token that is not there would decay by, had it a gate, is neither in the output nor in the state."""
    case = cases.draw(replace(o, raw=True, bias=True))
    cases.steepen(case, 8.0)
    y, S = case.bound(**contract)
    case.call(kernel)
    cases.assert_within("o", case.out, y, case.rows)
    cases.assert_within("S", case.S, S, case.slots.numpy()[case.rows])


def check_last(kernel: Any, o: Options, dead: int = 0) -> None:
    """Under decays that leave nothing, the state is what the last token wrote: its weight is 1. Behind it lie `dead` no-ops.

    Each element is one product of an input and a few factors, whose roundings in a window of another length are some units of
    2^-24; the sum of such decays has units of 2^-11, and so has the weight where it is taken from two sums.
    """
    whole, alone = cases.draw(replace(o, strong=True)), cases.draw(replace(o, strong=True))
    if dead:
        whole.extra["live"] = torch.arange(o.t).expand(o.b, o.t) < o.t - dead
    for name in ("q", "k", "v", "g", "beta", "out"):
        setattr(alone, name, getattr(alone, name)[:, o.t - dead - 1 : o.t - dead])
    for case in (whole, alone):
        case.call(kernel)
    named = whole.slots[whole.slots >= 0].long()
    assert_one_product(whole.S[named], alone.S[named])


def assert_one_product(S: torch.Tensor, alone: torch.Tensor) -> None:
    """States that hold one token each, as `check_last` says."""
    apart = (S.double() - alone.double()).abs()
    assert (apart <= 2.0**-18 * alone.double().abs()).all(), "the newest token's weight is not what it is alone"


def check_bytes(module: ModuleType, kernel: Any, o: Options, write: bool) -> None:
    case = cases.draw(o, padding=False)
    named = {name: getattr(case, name) for name in ("S", "q", "k", "v", "g", "beta", "out")}
    with watch(**named, slots=case.slots) as seen:
        case.call(kernel, write_state=write)
    sizes: dict[str, Any] = {"state": case.S.element_size(), "io": case.q.element_size(), "gate": 4}
    states = o.b * o.h * o.k * o.v * sizes["state"]
    sizes |= {"channel": o.channel} if "channel" in signature(module.traffic_bytes).parameters else {}
    expected = module.traffic_bytes(o.b, o.t, o.g, o.h, o.k, o.v, **sizes, write_state=write)
    assert seen.distinct_bytes() - seen.loaded("slots").distinct == expected
    assert seen.loaded("S").requested == states
    assert seen.stored("S").requested == (states if write else 0)
    assert seen.outside == seen.races == []
