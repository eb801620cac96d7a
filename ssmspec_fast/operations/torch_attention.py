"""Grouped-query attention over a cache in PyTorch: windows, trees, packed runs, and the moves of keys and values.

    s_p = scale q . K_p,  m = max s_p,  y = sum exp(s_p - m) V_p / sum exp(s_p - m)    over the positions p that q sees   (1)

The window's keys and values are first placed at the positions T + depth that they will have when they are committed; for a
tree, along each node's own path. So the sums of (1) run over positions for any window, and a token has the same bits as
in plain decoding if the arithmetic's sums have a fixed order.
"""

import torch
from torch import Tensor

from .arithmetic import Arithmetic, exact
from .slots import index, stand_in, take

QUERIES = 32
"""Queries whose products with all keys are in memory at once."""
HELD = 1 << 27
"""Such products in memory at once on a GPU: half a gigabyte in fp32."""


class CacheAttention:
    """(1) in one arithmetic."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic

    def attend(self, q: Tensor, K: Tensor, V: Tensor, seen: Tensor, scale: float) -> Tensor:
        """(1) for q (b, t, h, e), with K, V (b, p, g, e) or, by query, (b, t, p, g, e); seen (b, t, p)."""
        parts = []
        for start in range(0, q.shape[1], QUERIES):
            cut = slice(start, start + QUERIES)
            keys, values = (x if x.dim() == 5 else x[:, None] for x in (K, V))
            keys, values = (x[:, cut] if x.shape[1] > 1 else x for x in (keys, values))
            parts.append(self._attend(q[:, cut], keys, values, seen[:, cut], scale))
        return torch.cat(parts, dim=1)

    def _attend(self, q: Tensor, K: Tensor, V: Tensor, seen: Tensor, scale: float) -> Tensor:
        math, wide = self.arithmetic, exact(q)
        shape = (*q.shape[:2], K.shape[-2], -1, q.shape[-1])  # b t g r e
        queries, keys, values = q.to(wide).reshape(shape), K.to(wide).transpose(2, 3), V.to(wide).transpose(2, 3)
        reach = seen[:, :, None, :]
        keys, values = (
            torch.where(reach[..., None].any(1, keepdim=True) if x.shape[1] == 1 else reach[..., None], x, 0.0)
            for x in (keys, values)
        )
        void = ~values.isfinite().all(-1)  # b t g p: hidden values must not enter the sums, not even times 0
        values = values.masked_fill(void[..., None], 0.0)
        if math.bitwise:
            scores = math.sum(queries[..., None, :] * keys[:, :, :, None]) * scale
        else:
            scores = torch.matmul(queries, keys.transpose(-1, -2)) * scale  # b t g r p
        hidden = ~reach[..., None, :]
        scores = scores.masked_fill(hidden, float("-inf"))
        top = scores.amax(-1, keepdim=True)
        p = math.exp(torch.where(hidden, 0.0, scores - torch.where(top.isinf(), 0.0, top))).masked_fill(hidden, 0.0)
        y = math.sum(p[..., None] * values[:, :, :, None], dim=-2) if math.bitwise else torch.matmul(p, values)
        total = math.sum(p)[..., None]
        y = y.masked_fill((void & reach).any(-1)[..., None, None], float("nan"))
        return (y / torch.where(total == 0, 1.0, total)).reshape(q.shape).to(q.dtype)  # 0 if a query sees nothing

    def window(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        K: Tensor,
        V: Tensor,
        length: Tensor,
        *,
        ancestors: Tensor | None = None,
        scale: float,
        append: bool = True,
        slots: Tensor,
    ) -> Tensor:
        committed, t = length[index(slots)].long(), q.shape[1]
        held = reach(committed, K.shape[1])
        cache = [torch.cat([take(X, slots)[:, :held], x.to(X.dtype)], dim=1) for X, x in ((K, k), (V, v))]
        places, seen = self.places(committed, held, t, ancestors, q.device)
        rows = torch.arange(len(slots), device=q.device)
        keys, values = (x[rows[:, None, None] if places.dim() == 3 else rows[:, None], places] for x in cache)
        y = self.attend(q, keys, values, seen, scale)
        if append:
            self.append(K, V, k, v, length, slots=slots)
        return y

    @staticmethod
    def places(committed: Tensor, held: int, t: int, ancestors: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
        """Where position p is in [cache | window] for each row, or each node of a tree, and which queries see it."""
        p = torch.arange(held + t, device=device)
        depth = p - committed[:, None]  # b p, of the window where >= 0
        i = torch.arange(t, device=device)
        if ancestors is None:
            places = torch.where(depth < 0, p, (held + depth).clamp_max(held + t - 1))
            return places, (depth[:, None] <= i[:, None]) & (depth[:, None] < t)
        deep = ancestors.long().cumsum(-1)  # ancestor j of i is number deep - 1 on its path
        order = torch.where(ancestors, deep - 1, t)
        nodes = torch.full((*ancestors.shape[:2], t + 1), 0, device=device).scatter(2, order, i.expand_as(order))[..., :t]
        steps = depth[:, None].expand(-1, t, -1)
        along = torch.gather(nodes, 2, steps.clamp(0, t - 1))
        own = ancestors.sum(-1, keepdim=True)
        places = torch.where(steps < 0, p, held + along)
        return places, (steps < own) & (own > 0)

    @staticmethod
    def append(K: Tensor, V: Tensor, k: Tensor, v: Tensor, length: Tensor, *, slots: Tensor) -> None:
        """Writes keys and values of node i to place T + i; what exceeds the cache is dropped."""
        owner, (keys, values), some = stand_in(slots, k, v)
        at = length[owner].long()[:, None] + torch.arange(k.shape[1], device=k.device)
        inside = at < K.shape[1]
        at = torch.where(inside, at, at[:, :1])  # what does not fit repeats the first
        for pool, new in ((K, keys), (V, values)):
            fits = torch.where(inside[..., None, None], new, new[:, :1]).to(pool.dtype)
            pool.index_put_((owner[:, None], at), torch.where(some, fits, pool[owner[:, None], at]))

    def packed(
        self, q: Tensor, K: Tensor, V: Tensor, bounds: Tensor, *, length: Tensor, scale: float, slots: Tensor
    ) -> Tensor:
        """Token i of a sequence sees the places up to T + i; several sequences at once, padded to the longest."""
        out, edges, held = torch.zeros_like(q), bounds.tolist(), length.tolist()
        pieces = [
            (slot, start, end, held[slot])
            for slot, start, end in zip(slots.tolist(), edges, edges[1:], strict=False)
            if slot >= 0 and start < end
        ]
        many = at_once(q, max((T + end - start for _, start, end, T in pieces), default=0))
        for first in range(0, len(pieces), many):
            some = pieces[first : first + many]
            owners, starts, ends, before = torch.tensor(some, device=q.device).unbind(1)
            i = torch.arange(max(end - start for _, start, end, _ in some), device=q.device)
            p = torch.arange(max(T + end - start for _, start, end, T in some), device=q.device)
            real = i < (ends - starts)[:, None]
            at = torch.where(real, starts[:, None] + i, 0)
            seen = (p <= (before[:, None] + i)[..., None]) & real[..., None]
            y = self.attend(q[0, at], K[owners, : len(p)], V[owners, : len(p)], seen, scale)
            out[0, at[real]] = y[real]
        return out

    @staticmethod
    def append_packed(K: Tensor, V: Tensor, k: Tensor, v: Tensor, bounds: Tensor, *, length: Tensor, slots: Tensor) -> None:
        """Writes token i of a sequence to place T + i of its slot."""
        t = torch.arange(k.shape[1], device=k.device)
        b = (torch.searchsorted(bounds, t, right=True) - 1).clamp(0, len(slots) - 1)
        owner = slots[b]
        real = (owner >= 0) & (t < bounds[-1])
        at = length[index(owner)].long() + t - bounds[b]
        for pool, new in ((K, k), (V, v)):
            pool[owner[real].long(), at[real]] = new[0, real].to(pool.dtype)

    @staticmethod
    def compact(K: Tensor, V: Tensor, path: Tensor, length: Tensor, *, slots: Tensor) -> None:
        """K[T + m] <- K[T + path_m], read before anything is written."""
        owner, (nodes,), some = stand_in(slots, path)
        T = length[owner].long()[:, None]
        to = (T + torch.arange(path.shape[1], device=path.device)).clamp_max(K.shape[1] - 1)
        source = torch.where(some & (nodes >= 0), (T + nodes.clamp_min(0).long()).clamp_max(K.shape[1] - 1), to)
        for pool in (K, V):
            pool.index_put_((owner[:, None], to), pool[owner[:, None], source])


def at_once(q: Tensor, places: int) -> int:
    """Sequences of a packed run that attend together: on a GPU, where launches cost most, as many as `HELD` allows."""
    return max(1, HELD // (QUERIES * max(places, 1) * q[0, 0].numel())) if q.is_cuda else 1


def reach(committed: Tensor, capacity: int) -> int:
    """How much of the caches is read: on a GPU all of it, so that the host need not wait for the lengths."""
    return capacity if committed.is_cuda else int(committed.max())
