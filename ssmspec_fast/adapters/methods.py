"""The methods that the adapters test: how to make each for the longest window, and its drafts per sequence."""

from collections.abc import Callable
from typing import TypeAlias

from ..methods import Method
from ..methods.activation_replay import ActivationReplay
from ..methods.joint import Joint, JointByLag
from ..methods.plain import Plain
from ..methods.replay_buffer import ReplayBuffer
from ..methods.snapshots import Snapshots
from ..methods.tree import Tree

Make: TypeAlias = Callable[[int], Method]
"""Made for the length of the longest window."""


def plain(t: int) -> Method:
    return Plain()


def tree(t: int) -> Method:
    return Tree()


CHAINS: dict[str, tuple[Make, int]] = {
    "snapshots": (lambda t: Snapshots(), 1),
    "snapshots, eager": (lambda t: Snapshots(eager=True), 1),
    "snapshots, two drafts": (lambda t: Snapshots(2), 2),
    "joint": (lambda t: Joint(), 1),
    "joint, two drafts": (lambda t: Joint(2), 2),
    "joint by lag": (lambda t: JointByLag(), 1),
    "activation replay": (lambda t: ActivationReplay(), 1),
    "activation replay, two drafts": (lambda t: ActivationReplay(2), 2),
    "replay buffer": (lambda t: ReplayBuffer(), 1),
    "replay buffer of two windows": (lambda t: ReplayBuffer(2 * t), 1),
}
