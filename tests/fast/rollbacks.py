"""Methods that roll back wrongly, as other engines did: each is planted, and caught."""

from collections.abc import Callable
from typing import Any

import torch

from ssmspec_fast.methods import Method, activation_replay, replay_buffer, snapshots
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.cached import along
from ssmspec_fast.methods.snapshots import Snapshots

from .runs import BITWISE


class Convolutions:
    """Operations that commit windows of convolutions by another rule."""

    def __init__(self, operations: Any, rule: Callable[..., None]) -> None:
        self.operations, self.rule = operations, rule

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operations, name)

    def conv_commit(self, M: Any, u: Any, *, advanced: Any, slots: Any) -> None:
        self.rule(self.operations.conv_commit, M, u, advanced, slots)


def committing(base: Any, rule: Callable[..., None]) -> Callable[[], Method]:
    class Wrong(base):  # type: ignore[misc]
        def commit(self, pools: Any, feed: Any, verdict: Any, operations: Any) -> None:
            super().commit(pools, feed, verdict, Convolutions(operations, rule))

    return Wrong


def whole(commit: Any, M: Any, u: Any, advanced: Any, slots: Any) -> None:
    """By all inputs of a window. vllm-project/vllm#50272."""
    commit(M, u, advanced=torch.where(advanced > 0, u.shape[1], 0), slots=slots)


def one_more(commit: Any, M: Any, u: Any, advanced: Any, slots: Any) -> None:
    """By one rejected token, as long as there is one."""
    commit(M, u, advanced=torch.where(advanced > 0, (advanced + 1).clamp_max(u.shape[1]), 0), slots=slots)


def values_kept(commit: Any, M: Any, u: Any, advanced: Any, slots: Any) -> None:
    """Of the three convolutions of Kimi Delta Attention that of the values keeps what was rejected."""
    every, last = M.clone(), M.shape[1] // 3
    whole(commit, every, u, advanced, slots)
    commit(M, u, advanced=advanced, slots=slots)
    M[:, -last:] = every[:, -last:]


class KeepsRejectedState(Snapshots):
    """The state is that after the whole window, as if it could be trimmed like a cache. ml-explore/mlx-lm#1486,
    vllm-project/vllm#44296."""

    def entry(self, pools: Any, slots: Any, steps: Any) -> Any:
        return super().entry(pools, slots, steps if steps.shape[1] > 1 else torch.full_like(steps, pools.kept.room - 2))


ROLLBACKS: dict[str, Callable[[], Method]] = {
    "keeps rejected inputs": committing(Snapshots, whole),
    "keeps one rejected input": committing(Snapshots, one_more),
    "keeps the rejected state": KeepsRejectedState,
    "replays the state only": committing(ActivationReplay, lambda *given: None),  # ekryski/mlx-swift-lm#218
    "rolls back keys only": committing(Snapshots, values_kept),
}


def prefix(x: Any, entries: Any, path: Any) -> Any:
    return x[entries[:, 0], : path.shape[1]]


FAULTS: dict[str, tuple[str, Any, str, Any]] = {
    "the second token for all later ones": (
        "activation replay", activation_replay, "along", lambda x, entries, path: along(x, entries, path.clamp_max(1))
    ),
    "a convolution left behind": ("snapshots", BITWISE, "conv_commit", lambda M, u, advanced, slots: None),
    "a ring that is never flushed": (
        "replay buffer of two windows", replay_buffer, "is_due", lambda held, window, entries: held > 99
    ),
    "a path as a prefix": ("tree", activation_replay, "along", prefix),
    "keys and values left where they were": ("tree", BITWISE, "kv_compact", lambda *args, **kwargs: None),
    "a cursor that stands": ("snapshots", snapshots, "move", lambda cursor, slots, values: None),
}  # fmt: skip
"""Of which method, and what is replaced by what."""
