"""SGLang's kernels over several windows, chains and trees: a buffer for every node, of which the last accepted is copied.

An engine leaves a row that takes no part out of its batch; here every row is in it, and the convolution's slot of such a row,
which a window overwrites, is put back as it was.
"""

from typing import Any

import numpy as np

from ssmspec_ref.mixer import SSDMixer
from ssmspec_ref.shapes import Array, Lengths, Parents, Path

from .peers import module
from .pools import Pool, turned, widened


def links(parents: Parents) -> tuple[Array, Array]:
    """The first child and the next sibling of every node, -1 where there is none."""
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
    """The node of each row that is accepted last, -1 where none is."""
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
        """`retrieved` are the parents of a tree as the convolution found them."""
        rows, nodes = next(iter(vars(window).values())).shape[:2]
        self.more = self.kernels.kept(rows, nodes, self.pool.states.shape[1:], retrieved)
        y: Array = self.kernels.tensor.back(self.run(self.pool, window, self.params, **self.more))[0]
        return y

    def commit(self, advanced: Array, path: Array) -> None:
        copy(self.kernels, self.pool, self.more["intermediate_states_buffer"], last(advanced, path))

    def state(self) -> Array:
        return self.turn(self.kernels.tensor.back(self.pool.rows())[0])


def copy(kernels: Any, pool: Pool, nodes: Any, ends: Array) -> None:
    """Copy each row's node into its slot, by their kernel where it runs: it refuses a CPU."""
    step = kernels.tensor(ends)
    if kernels.tensor.device == "cpu":
        rows = (step >= 0).nonzero()[:, 0]
        pool.states[pool.slots[rows, 0]] = nodes[rows, step[rows]]
    else:
        kernels.scatter(pool.states[None], nodes[None], pool.index, step.int())


class Layer:
    """The convolution and the recurrence of a layer; the parents of a tree go from the one to the other."""

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
        """M as the kernel holds it; only the oldest of its w columns, which no kernel keeps, is counted here."""
        M = self.kernels.tensor.torch.cat([self.M[:, :, :1], self.columns.rows()], dim=2)
        return self.kernels.tensor.back(M)[0], self.inner.state()


class Ring:
    """Single tokens from a checkpoint and a ring of `entries`, the last of which is folded into the checkpoint.

    The kernel makes g and beta itself, from raw gates; they are chosen so that it makes those that are given. Above its
    threshold softplus(x) is x, so that g = -e^A_log x is met by a quotient, within the rounding of the quotient and of the
    product; beta is what its sigmoid gives for the logit. What either moves counts against the kernel: no bound allows it.
    """

    A_LOG = -16.0
    """Log decays of 20 e^-16 = 2.3e-6 and more lie above the threshold; smaller ones are off by e^-16 log 2 = 7.8e-8 at most,
    and one of 0, made by x = -inf, by nothing."""

    def __init__(self, kernels: Any, entries: int, channels: bool, S: Array, params: Any) -> None:
        self.kernels, self.entries, self.channels, self.params = kernels, entries, channels, params
        self.pool = Pool(kernels.tensor, turned(S))
        self.held: dict[str, Any] = {}
        self.rate = module("conformance.adapters.jitted").exp_at(self.A_LOG, kernels.tensor.device)
        self.position = self.kernels.tensor(np.zeros(len(S), dtype=np.int32))

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        tensor, torch = self.kernels.tensor, self.kernels.tensor.torch
        q, k, v, g, beta = (tensor(a)[:, 0] for a in (window.q, window.k, window.v, window.g, window.beta))
        slots, (heads, keys), (values, width) = len(self.pool.states), k.shape[1:], v.shape[1:]
        if not self.held:
            gates = (keys,) if self.channels else ()
            sizes = {"d_cache": (values, self.entries, width), "k_cache": (heads, self.entries, keys)}
            sizes["g_cache"] = (values, self.entries, *gates)
            self.held = {"initial_state": self.pool.states} | {
                name: torch.full((slots, *size), float("nan"), device=tensor.device) for name, size in sizes.items()
            }
        self.token = {
            "mixed_qkv": torch.cat([part.flatten(1) for part in (q, k, v)], dim=1).contiguous(),
            "a": torch.where(g == 0, -float("inf"), -g.double() / self.rate).float(),
            "b": beta.double().logit().float(),
            "A_log": torch.full((values,), self.A_LOG, device=tensor.device),
            "dt_bias": torch.zeros(g.shape[1:], device=tensor.device),
        }
        y: Array = tensor.back(self.launch(self.held, self.token, 0))[0]
        return y[:, None]

    def launch(self, held: dict[str, Any], token: dict[str, Any], flush: int) -> Any:
        torch, scale = self.kernels.tensor.torch, self.params.scale
        rows, (heads, values, keys) = len(self.position), held["initial_state"].shape[1:]
        out = torch.full((rows, 1, heads, values), float("nan"), device=self.position.device)
        self.kernels.ring(
            **token, **held, out=out, scale=keys**-0.5 if scale is None else scale, ssm_state_indices=self.pool.index,
            write_pos=self.position, force_flush=torch.full_like(self.position, flush), is_kda=self.channels, nk=1,
            use_qk_l2norm_in_kernel=self.params.l2_norm,
        )  # fmt: skip
        return out[:, 0]

    def commit(self, advanced: Array, path: Array) -> None:
        self.position = (self.position + 1) % self.entries

    def state(self) -> Array:
        """After a flush of copies by the last token again, which has no effect where g and beta are 0."""
        copies = {name: a.clone() for name, a in self.held.items()}
        nothing = {name: self.token[name].new_full(self.token[name].shape, -float("inf")) for name in ("a", "b")}
        self.launch(copies, self.token | nothing, 1)
        return turned(self.kernels.tensor.back(copies["initial_state"][self.pool.slots[:, 0]])[0])
