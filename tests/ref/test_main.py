"""`python -m ssmspec_ref`: every path within its bound, the bound sound, and tight enough that faults are above it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref import __main__ as command
from ssmspec_ref import attention, conv, error_bounds
from ssmspec_ref import model as lm
from ssmspec_ref.backtrack import joint, snapshots
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.contract import FLOAT64
from ssmspec_ref.errors import AcceptanceError
from ssmspec_ref.layers.mixer import MixerState
from ssmspec_ref.model import Model, ModelState, tiny
from ssmspec_ref.records import each
from tests.families import examples
from tests.speculation import wrong

from .refusals import refused

KINDS = list(tiny.KINDS)
each_kind = pytest.mark.parametrize("kind", KINDS)
ORDERS = (FLOAT64, replace(FLOAT64, order="output_only"))


def test_the_command_takes_every_path_on_every_kind_and_finds_nothing_above_its_bound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main() == 0
    out = capsys.readouterr().out
    assert "ABOVE" not in out
    for kind in KINDS:
        for name in command.CACHE if kind == "attention" else command.ROUTES:
            lines = [line for line in out.splitlines() if line.startswith(f"{kind:13} {name:24} ")]
            pieces = {line.split(f"{name:24} ")[1].split()[0] for line in lines}
            needed = {"logits"} | ({"KV"} if "hybrid" in kind or kind == "attention" else set())
            needed |= set() if kind == "attention" else {"conv", "state"}
            assert pieces == needed | ({"ring"} if name == "replay buffer" else set())


def perturbed(state: ModelState, size: float, rng: np.random.Generator) -> tuple[ModelState, list[dict[str, Any]]]:
    """A state moved by up to `size` in every entry, and what it was moved by."""
    moved = tuple(
        each(lambda a: a if a.dtype == np.int64 else a + rng.uniform(-size, size, a.shape), layer) for layer in state
    )
    names = [[name for name in vars(layer) if name != "length"] for layer in state]
    wrong = [
        {name: np.abs(getattr(a, name) - getattr(b, name)) for name in fields}
        for a, b, fields in zip(moved, state, names, strict=True)
    ]
    return moved, wrong


def after_some(model: Model, rng: np.random.Generator) -> ModelState:
    tokens = rng.integers(0, model.vocabulary, (2, 4))
    live = np.arange(4) < rng.integers(1, 5, 2)[:, None]
    return lm.scan(lm.new_state(model, 2), tokens, model, live)[1]


@each_kind
@examples(4)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([0.0, 1e-12, 1e-9]))
def test_the_bound_of_a_model_covers_what_its_state_was_wrong_by(kind: str, seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    model = tiny.model(kind, seed % 89, 5)
    state = after_some(model, rng)
    tokens, live = rng.integers(0, 5, (2, 3)), np.arange(3) < rng.integers(1, 4, 2)[:, None]
    moved, wrong = perturbed(state, size, rng)
    exact, bound = (error_bounds.model.scan(state, tokens, model, ORDERS, live, w) for w in (None, wrong))
    logits, after = lm.scan(moved, tokens, model, live)
    room = exact.logits.error + bound.logits.error
    assert error_bounds.compare(logits[live], exact.logits.value[live], room[live]).passed
    for got, base, its in zip(after, exact.layers, bound.layers, strict=True):
        for name in its:
            found = error_bounds.compare(getattr(got, name), base[name].value, base[name].error + its[name].error)
            assert found.passed


@each_kind
def test_planted_bound_that_forgets_the_error_of_the_state_is_caught(kind: str) -> None:
    rng = np.random.default_rng(5)
    model = tiny.model(kind, 7, 5)
    state, tokens = after_some(model, rng), rng.integers(0, 5, (2, 3))
    moved, _ = perturbed(state, 1e-3, rng)
    bound = error_bounds.model.scan(state, tokens, model, ORDERS)
    logits, _ = lm.scan(moved, tokens, model)
    assert not error_bounds.compare(logits, bound.logits.value, 2 * bound.logits.error).passed


def above(kind: str, name: str, route: command.Route | None = None) -> set[str]:
    """What of a path lies above its bound."""
    model = tiny.model(kind, command.SEED, command.VOCABULARY)
    return {line.what for line in command.step(kind, name, route or command.ROUTES[name], model) if not line.found.passed}


@pytest.mark.parametrize("kind", ["mamba1", "mamba2", "delta", "hybrid", "delta_hybrid"])
def test_planted_state_rounded_to_float32_is_above_the_bound(kind: str) -> None:
    def commit(*args: Any) -> Any:
        """Snapshots are stored in float32."""
        kept = snapshots.commit(*args)
        return type(kept)(kept.M, kept.S.astype(np.float32).astype(np.float64))

    assert not above(kind, "snapshots")
    route = replace(command.ROUTES["snapshots"], path=wrong(snapshots, commit=commit))
    assert "state" in above(kind, "snapshots", route)


@pytest.mark.parametrize("name", ["tree", "activation replay", "activation replay, tree"])
def test_planted_window_of_the_convolution_one_token_short_is_above_the_bound(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = conv.commit
    monkeypatch.setattr(conv, "commit", lambda M, u, advanced: commit(M, u, np.maximum(advanced - 1, 0)))
    assert above("mamba2", name) >= {"conv"}


def test_planted_compaction_of_the_wrong_slots_is_above_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmoved(state: attention.KVState, path: Any) -> attention.KVState:
        return attention.KVState(state.K, state.V, state.length + (path >= 0).sum(axis=1))

    assert not above("hybrid", "tree")
    monkeypatch.setattr(attention, "compact", unmoved)
    assert above("hybrid", "tree") >= {"KV"}


def test_planted_ring_that_holds_a_rejected_token_is_found() -> None:
    class Greedy(ReplayBuffer):
        def commit(self, pending: Any, accepted: Any, mixer: Any) -> Any:
            kept = super().commit(pending, accepted, mixer)
            return replace(kept, held=kept.held + (np.arange(len(kept.held)) == 1))

    route = replace(command.ROUTES["replay buffer"], path=Greedy(18, 6))
    assert above("mamba2", "replay buffer", route) >= {"ring", "state"}


def test_planted_lag_that_is_not_fed_again_is_refused() -> None:
    route = replace(command.ROUTES["joint attainment"], path=wrong(joint, refeed=lambda kept: 0 * kept.lag))
    refused(
        AcceptanceError, "sequence 0 advanced by 4 tokens, but its window holds 1", above, "mamba2", "joint attainment", route
    )


def test_the_command_exits_with_one_if_anything_is_above_its_bound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ROUTES", {"replay buffer": command.ROUTES["replay buffer"]})
    monkeypatch.setattr(tiny, "KINDS", {"mamba2": tiny.KINDS["mamba2"]})
    monkeypatch.setattr(ReplayBuffer, "restore", lambda self, kept, mixer: snapshots.start(kept_state(kept)))
    assert command.main() == 1
    assert "ABOVE ITS BOUND" in capsys.readouterr().out


def kept_state(kept: Any) -> Any:
    """The checkpoint, without what the ring holds."""
    return MixerState(kept.M, kept.S_0)
