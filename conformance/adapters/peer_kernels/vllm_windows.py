"""vLLM's kernels over several windows: a table of slots, a ring of single tokens, a layer with its convolution.

An engine leaves a row without a window out of its batch. Here every row is in the batch, and such a row is restored
afterwards.
"""

from typing import Any

import numpy as np

from ssmspec_ref.layers.mixer import SSDMixer
from ssmspec_ref.shapes import Array

from .pools import Pool, ends, flat, turned, widened
from .sources import mapped


class Snapshots:
    """One slot per token of a window; the next window reads the slot of the last accepted token."""

    def __init__(self, kernels: Any, rule: str, S: Array, params: Any) -> None:
        self.kernels, self.params = kernels, params
        self.turn = turned if rule == "delta" else lambda S: S
        self.run = kernels.delta_window if rule == "delta" else kernels.ssd_window
        self.S = self.turn(S)
        self.pool: Pool | None = None
        torch = kernels.tensor.torch
        self.accepted = torch.ones(len(S), dtype=torch.int32, device=kernels.tensor.device)

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        tokens = next(iter(vars(window).values())).shape[1]
        self.pool = self.pool or Pool(self.kernels.tensor, self.S, self.kernels.padding + 1, tokens)
        self.before = self.pool.states.clone()
        y: Array = self.kernels.tensor.back(self.run(self.pool, self.accepted, window, self.params))[0]
        return y

    def commit(self, advanced: Array, path: Array) -> None:
        assert self.pool is not None
        count = self.kernels.tensor(advanced).int()
        idle = self.pool.slots[count == 0].flatten()
        self.pool.states[idle] = self.before[idle]
        self.accepted = self.kernels.tensor.torch.where(count > 0, count, self.accepted)

    def state(self) -> Array:
        if self.pool is None:
            return self.turn(self.S)
        return self.turn(self.kernels.tensor.back(self.pool.at(self.accepted - 1))[0])


class Layer:
    """The convolution and the recurrence of a layer, both using `num_accepted_tokens`.

    The convolution's slot holds w - 1 inputs followed by those of a window's drafts; the next window skips the rejected ones.
    A window may be shorter than the longest one, which comes first; the kernel receives both lengths.
    """

    def __init__(self, kernels: Any, mixer: Any, state: Any) -> None:
        self.kernels, self.mixer, self.M = kernels, mixer, kernels.tensor(state.M)
        self.inner = Snapshots(kernels, "ssd" if isinstance(mixer, SSDMixer) else "delta", state.S, mixer.params)
        self.columns: Pool | None = None

    def verify(self, inputs: Any, parents: Array | None = None) -> Array:
        tensor, (b, t, _) = self.kernels.tensor, inputs.pre.shape
        if self.columns is None:
            self.longest = t
            drafts = np.full((b, inputs.pre.shape[2], t - 1), np.nan)
            self.columns = Pool(tensor, np.concatenate([self.M.cpu()[:, :, 1:], drafts], axis=2), self.kernels.padding + 1)
        self.before, self.pre = self.columns.states.clone(), tensor(inputs.pre)
        x = flat(self.pre)
        c = self.kernels.conv_update(
            x, self.columns.states, **self.kernels.conv_rest(self.mixer.conv), conv_state_indices=self.columns.index,
            num_accepted_tokens=self.inner.accepted, query_start_loc=ends(tensor, b, t), max_query_len=self.longest,
            out=tensor.torch.full_like(x, float("nan")),
        )  # fmt: skip
        return self.inner.verify(self.mixer.project(tensor.back(c.unflatten(0, (b, t)))[0], inputs.gates))

    def commit(self, advanced: Array, path: Array) -> None:
        assert self.columns is not None
        idle = self.columns.slots[self.kernels.tensor(advanced) == 0].flatten()
        self.columns.states[idle] = self.before[idle]
        rows = zip(self.M, self.pre, (int(a) for a in advanced), strict=True)
        self.M = self.kernels.tensor.torch.stack([widened(m, u[:a].T) for m, u, a in rows])
        self.inner.commit(advanced, path)

    def state(self) -> tuple[Array, Array]:
        """M as stored by the kernel; only the oldest of its w columns, which no kernel keeps, is tracked here."""
        assert self.columns is not None
        held = self.columns.rows()
        kept = held.shape[2] - self.longest + 1
        begin = (self.inner.accepted - 1).long()[:, None] + self.kernels.tensor.torch.arange(kept, device=held.device)
        columns = held.gather(2, begin[:, None].expand(-1, held.shape[1], -1))
        M = self.kernels.tensor.torch.cat([self.M[:, :, :1], columns], dim=2)
        return self.kernels.tensor.back(M)[0], self.inner.state()


class Ring:
    """Single tokens from a checkpoint and a ring of `entries`; when the last entry is filled, the ring is folded."""

    def __init__(self, kernels: Any, entries: int, S: Array, params: Any) -> None:
        self.kernels, self.entries, self.params, self.S = kernels, entries, params, S
        self.pool: Pool | None = None

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        token = mapped(lambda a: a[:, 0], window)
        if self.pool is None:
            self.start(token)
        y: Array = self.kernels.tensor.back(self.launch(self.held, self.kernels.ssd(token, self.params), self.position))[0]
        return y[:, None]

    def start(self, token: Any) -> None:
        torch, device = self.kernels.tensor.torch, self.kernels.tensor.device
        self.pool = Pool(self.kernels.tensor, self.S, self.kernels.padding + 1)
        self.zero = token
        slots, (b, h, p), (_, g, n) = len(self.pool.states), token.x.shape, token.B.shape
        sizes = {"x_cache": (h, self.entries, p), "dt_cache": (h, self.entries), "B_cache": (g, self.entries, n)}
        caches = {name: torch.full((slots, *size), float("nan"), device=device) for name, size in sizes.items()}
        self.held = {"state": self.pool.states, **caches}
        self.position = torch.zeros(b, dtype=torch.int32, device=device)
        self.products = torch.full((b, g, self.entries), float("nan"), device=device)

    def launch(self, held: dict[str, Any], given: dict[str, Any], position: Any, flush: bool = False) -> Any:
        assert self.pool is not None
        last = position == self.entries - 1
        return self.kernels.replay(
            **held, **given, bc_pre=self.products, write_pos=position, is_flush=last | flush, max_cache_len=self.entries,
            state_batch_indices=self.pool.index, out=self.kernels.tensor.torch.full_like(given["x"], float("nan")),
        )  # fmt: skip

    def commit(self, advanced: Array, path: Array) -> None:
        self.position = (self.position + 1) % self.entries

    def state(self) -> Array:
        """The state after flushing copies with one more token that has no effect: x = 0, and dt = 0 after softplus."""
        if self.pool is None:
            return self.S
        copies = {name: a.clone() for name, a in self.held.items()}
        given = self.kernels.ssd(self.zero, self.params)
        bias = 0 if given["dt_bias"] is None else given["dt_bias"][:, :1]
        nothing = self.kernels.tensor.torch.full_like(given["dt"][..., :1], -1e4 if self.params.dt_softplus else 0.0)
        given["dt"] = (nothing - (0 if self.params.dt_softplus else bias)).expand_as(given["x"])
        given["x"] = self.kernels.tensor.torch.zeros_like(given["x"])
        self.launch(copies, given, self.position, flush=True)
        y: Array = self.kernels.tensor.back(copies["state"][self.pool.slots[:, 0]])[0]
        return y
