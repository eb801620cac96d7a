"""SGLang's rings of the gated delta rule: single tokens, and windows of drafts, from a checkpoint and the inputs since then.

The kernels compute g and beta from raw gates; the raw gates are chosen to give the required values. Above the threshold
softplus(x) is x, so g = -e^A_log x is reached by a quotient, up to the rounding of the quotient and the product; beta is the
sigmoid of the logit. Deviations from either count against the kernel: no bound includes them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ssmspec_ref.shapes import Array

from .pools import Pool, ends, turned
from .sources import module

A_LOG = -16.0
"""Log decays of 20 e^-16 = 2.3e-6 and more are above the threshold; smaller ones have an error of at most
e^-16 log 2 = 7.8e-8, and a decay of 0, given by x = -inf, is exact."""
SPARE = 4
"""Largest window of drafts, root included, that a ring of windows is created for."""
CAPACITY = 16
"""Entries of a ring of windows, a power of two. With more than eight in use, it is folded before the next window."""


class Gates:
    """The raw gates of a device's kernels."""

    def __init__(self, tensor: Any) -> None:
        self.tensor, self.rate = tensor, module("conformance.adapters.peer_kernels.jitted").exp_at(A_LOG, tensor.device)

    def __call__(self, g: Any, beta: Any) -> dict[str, Any]:
        torch = self.tensor.torch
        return {
            "a": torch.where(g == 0, -float("inf"), -g.double() / self.rate).float(),
            "b": beta.double().logit().float(),
            "A_log": torch.full((beta.shape[-1],), A_LOG, device=self.tensor.device),
            "dt_bias": torch.zeros(g.shape[beta.dim() - 1 :], device=self.tensor.device),
        }


def without_effect(token: dict[str, Any]) -> dict[str, Any]:
    """The same tokens with g = 0 and beta = 0."""
    return token | {name: token[name].new_full(token[name].shape, -float("inf")) for name in ("a", "b")}


def blank(tensor: Any, slots: int, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Memory for every slot, filled with NaN."""
    return {name: tensor.torch.full((slots, *size), float("nan"), device=tensor.device) for name, size in sizes.items()}


class Ring:
    """Single tokens from a checkpoint and a ring of `entries`; when the last entry is filled, the ring is folded."""

    def __init__(self, kernels: Any, entries: int, channels: bool, S: Array, params: Any) -> None:
        self.kernels, self.entries, self.channels, self.params = kernels, entries, channels, params
        self.pool, self.gates = Pool(kernels.tensor, turned(S)), Gates(kernels.tensor)
        self.held: dict[str, Any] = {}
        self.position = kernels.tensor(np.zeros(len(S), dtype=np.int32))

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        q, k, v, g, beta = (self.kernels.tensor(a)[:, 0] for a in (window.q, window.k, window.v, window.g, window.beta))
        if not self.held:
            (h, p), (values, width) = k.shape[1:], v.shape[1:]
            gates = (p,) if self.channels else ()
            sizes = {"d_cache": (values, self.entries, width), "k_cache": (h, self.entries, p)}
            sizes["g_cache"] = (values, self.entries, *gates)
            self.held = {"initial_state": self.pool.states, **blank(self.kernels.tensor, len(self.pool.states), sizes)}
        packed = self.kernels.tensor.torch.cat([part.flatten(1) for part in (q, k, v)], dim=1).contiguous()
        self.token = {"mixed_qkv": packed, **self.gates(g, beta)}
        y: Array = self.kernels.tensor.back(self.launch(self.held, self.token, 0))[0]
        return y[:, None]

    def launch(self, held: dict[str, Any], token: dict[str, Any], flush: int) -> Any:
        torch, scale = self.kernels.tensor.torch, self.params.scale
        rows, (h, v, k) = len(self.position), held["initial_state"].shape[1:]
        out = torch.full((rows, 1, h, v), float("nan"), device=self.position.device)
        self.kernels.ring(
            **token, **held, out=out, scale=k**-0.5 if scale is None else scale, ssm_state_indices=self.pool.index,
            write_pos=self.position, force_flush=torch.full_like(self.position, flush), is_kda=self.channels, nk=1,
            use_qk_l2norm_in_kernel=self.params.l2_norm,
        )  # fmt: skip
        return out[:, 0]

    def commit(self, advanced: Array, path: Array) -> None:
        self.position = (self.position + 1) % self.entries

    def state(self) -> Array:
        """The state after flushing copies: the last token is repeated, without effect."""
        copies = {name: a.clone() for name, a in self.held.items()}
        self.launch(copies, without_effect(self.token), 1)
        return turned(self.kernels.tensor.back(copies["initial_state"][self.pool.slots[:, 0]])[0])


class Windows:
    """Windows of drafts from a checkpoint and a ring; cursors, one per request, mark the valid entries."""

    def __init__(self, kernels: Any, S: Array, params: Any) -> None:
        self.kernels, self.params = kernels, params
        self.pool, self.gates = Pool(kernels.tensor, turned(S), 1), Gates(kernels.tensor)
        torch, device, rows = kernels.tensor.torch, kernels.tensor.device, len(S)
        self.requests = torch.arange(rows, 0, -1, device=device, dtype=torch.int32)
        self.cursors = {name: torch.zeros(rows + 1, dtype=torch.int32, device=device) for name in ("write_pos", "cache_base")}
        self.cursors["cache_base"] += 5
        self.cursors["is_flush"] = torch.zeros(rows + 1, dtype=torch.int8, device=device)
        self.held: dict[str, Any] = {}

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        tensor, (b, t) = self.kernels.tensor, window.beta.shape[:2]
        q, k, v, g, beta = (tensor(a).flatten(0, 1) for a in (window.q, window.k, window.v, window.g, window.beta))
        if not self.held:
            keys, values, each = (
                (k.shape[1], CAPACITY, k.shape[2]),
                (v.shape[1], CAPACITY, v.shape[2]),
                (v.shape[1], CAPACITY),
            )
            sizes: dict[str, tuple[int, ...]] = {"d_cache": values, "k_cache": keys, "g_cache": each}
            sizes |= {"rawv_cache": values, "rawk_cache": keys, "beta_cache": each}
            self.held = {"checkpoint_state": self.pool.states, **blank(tensor, b + 1, sizes)}
        self.tokens = {"q": q, "k": k, "v": v, **self.gates(g, beta)}
        y: Array = tensor.back(self.launch(self.held, self.tokens, self.cursors).unflatten(0, (b, t)))[0]
        return y

    def launch(self, held: dict[str, Any], tokens: dict[str, Any], cursors: dict[str, Any]) -> Any:
        tensor, rows = self.kernels.tensor, len(self.requests)
        return self.kernels.window_ring(
            **tokens, **held, **cursors, out=tensor.torch.full_like(tokens["v"], float("nan")),
            query_start_loc=ends(tensor, rows, len(tokens["v"]) // rows), ssm_state_indices=self.pool.index,
            replay_indices=self.requests, max_cache_len=CAPACITY, max_spec_len=SPARE, scale=self.params.scale, nk=1,
            nk_flush=1, use_qk_l2norm_in_kernel=self.params.l2_norm, dot_precision="tf32",
        )  # fmt: skip

    def commit(self, advanced: Array, path: Array) -> None:
        self.kernels.advance(
            **self.cursors, num_accepted=self.kernels.tensor(advanced).int(), replay_indices=self.requests,
            max_cache_len=CAPACITY, max_spec_len=SPARE,
        )  # fmt: skip

    def state(self) -> Array:
        """The state after folding copies, before one more window."""
        copies, cursors = ({n: a.clone() for n, a in held.items()} for held in (self.held, self.cursors))
        cursors["is_flush"].fill_(1)
        self.launch(copies, without_effect(self.tokens), cursors)
        return turned(self.kernels.tensor.back(copies["checkpoint_state"][self.pool.slots[:, 0]])[0])
