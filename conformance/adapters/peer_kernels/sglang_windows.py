"""SGLang's kernels over several windows, chains and trees: every node has a buffer, and that of the last accepted one is
copied.

An engine leaves a row without a window out of its batch. Here every row is in the batch, and the convolution slot of such a
row, which the window overwrites, is restored.
"""

from typing import Any

import numpy as np

from ssmspec_ref.layers.mixer import SSDMixer
from ssmspec_ref.shapes import Array, Lengths, Parents, Path

from .pools import Pool, turned, widened


def links(parents: Parents) -> tuple[Array, Array]:
    """The first child and the next sibling of every node, -1 if there is none."""
    child, sibling = np.full_like(parents, -1), np.full_like(parents, -1)
    for b, row in enumerate(parents):
        latest: dict[int, int] = {}
        for node, parent in enumerate(row):
            if parent < 0:
                continue
            if parent in latest:
                sibling[b, latest[parent]] = node
            else:
                child[b, parent] = node
            latest[int(parent)] = node
    return child, sibling


def last(advanced: Lengths, path: Path) -> Array:
    """The last accepted node of each row, -1 if there is none."""
    ends = np.take_along_axis(path, np.maximum(advanced - 1, 0)[:, None], axis=1)[:, 0]
    return np.where(advanced > 0, ends, -1)


class Snapshots:
    """The states of rows in slots, and those of a window's nodes in a buffer."""

    def __init__(self, kernels: Any, rule: str, S: Array, params: Any) -> None:
        self.kernels, self.params = kernels, params
        self.turn = turned if rule == "delta" else lambda S: S
        self.run = getattr(kernels, rule)
        self.pool = Pool(kernels.tensor, self.turn(S))

    def verify(self, window: Any, parents: Array | None = None, retrieved: Any = None) -> Array:
        """`retrieved` are the parents of a tree as computed by the convolution kernel."""
        rows, nodes = next(iter(vars(window).values())).shape[:2]
        self.more = self.kernels.kept(rows, nodes, self.pool.states.shape[1:], retrieved)
        y: Array = self.kernels.tensor.back(self.run(self.pool, window, self.params, **self.more))[0]
        return y

    def commit(self, advanced: Array, path: Array) -> None:
        copy(self.kernels, self.pool, self.more["intermediate_states_buffer"], last(advanced, path))

    def state(self) -> Array:
        return self.turn(self.kernels.tensor.back(self.pool.rows())[0])


def copy(kernels: Any, pool: Pool, nodes: Any, ends: Array) -> None:
    """Copy each row's accepted node into its slot, with SGLang's kernel where it runs (it refuses a CPU)."""
    step = kernels.tensor(ends)
    if kernels.tensor.device == "cpu":
        rows = (step >= 0).nonzero()[:, 0]
        pool.states[pool.slots[rows, 0]] = nodes[rows, step[rows]]
    else:
        kernels.scatter(pool.states[None], nodes[None], pool.index, step.int())


class Layer:
    """The convolution and the recurrence of a layer; the convolution passes the parents of a tree on to the recurrence."""

    def __init__(self, kernels: Any, mixer: Any, state: Any) -> None:
        self.kernels, self.mixer, self.M = kernels, mixer, kernels.tensor(state.M)
        self.columns = Pool(kernels.tensor, state.M[:, :, 1:])
        self.inner = Snapshots(kernels, "ssd" if isinstance(mixer, SSDMixer) else "delta", state.S, mixer.params)

    def verify(self, inputs: Any, parents: Array | None = None) -> Array:
        self.before, self.pre = self.columns.states.clone(), self.kernels.tensor(inputs.pre)
        self.more = self.kernels.windows(self.columns, inputs.pre.shape[1])
        c = self.kernels.conv(self.columns, self.pre, parents, self.mixer.conv, self.more)
        window = self.mixer.project(self.kernels.tensor.back(c)[0], inputs.gates)
        return self.inner.verify(window, parents, self.more.get("retrieve_parent_token"))

    def commit(self, advanced: Array, path: Array) -> None:
        idle = self.columns.slots[self.kernels.tensor(advanced) == 0].flatten()
        self.columns.states[idle] = self.before[idle]
        copy(self.kernels, self.columns, self.more["intermediate_conv_window"], last(advanced, path))
        rows = zip(self.M, self.pre, path, advanced, strict=True)
        self.M = self.kernels.tensor.torch.stack([widened(m, u[nodes[:count]].T) for m, u, nodes, count in rows])
        self.inner.commit(advanced, path)

    def state(self) -> tuple[Array, Array]:
        """M as stored by the kernel; only the oldest of its w columns, which no kernel keeps, is tracked here."""
        M = self.kernels.tensor.torch.cat([self.M[:, :, :1], self.columns.rows()], dim=2)
        return self.kernels.tensor.back(M)[0], self.inner.state()
