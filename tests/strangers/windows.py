"""What stands around a recurrence, as a kernel's author writes it: the causal convolution, and which drafts are accepted.

The convolution reads its window by strides, as a kernel does. Acceptance walks row by row: greedily down a tree, and by
rejection sampling (arXiv:2211.17192) down a chain.
"""

from typing import Any

import numpy as np

from ssmspec_ref.contract import Adapter, Capability, Limits, Subject
from ssmspec_ref.shapes import Array
from tests.strangers.recurrences import CONTRACT, f32, silu

Run = tuple[Array, Array, Array, Array]


def conv_step(M: Array, u: Array, params: Any) -> tuple[Array, Array]:
    M, u, weight, bias = (f32(a) for a in (M, u, params.weight, params.bias))
    rows, channels, taps = M.shape
    flat, c = M.ravel(), np.arange(channels)
    y, M_next = np.zeros_like(u), np.empty_like(M)
    for b in range(rows):
        for k in range(taps):
            at = b * channels * taps + c * taps + k
            M_next[b, :, k] = flat[at + 1] if k + 1 < taps else u[b]
            y[b] += weight[:, k] * M_next[b, :, k]
    if bias is not None:
        y += bias
    return (silu(y) if params.activation else y), M_next


def conv_scan(M: Array, u: Array, params: Any) -> tuple[Array, Array]:
    M, u, weight, bias = (f32(a) for a in (M, u, params.weight, params.bias))
    taps, tokens = weight.shape[1], u.shape[1]
    wide, y = np.concatenate([M, u.transpose(0, 2, 1)], axis=2), np.zeros_like(u)
    for t in range(tokens):
        for k in range(taps):
            y[:, t] += weight[:, k] * wide[:, :, t + 1 + k]
    if bias is not None:
        y += bias
    return (silu(y) if params.activation else y), wide[:, :, tokens:].copy()


def conv_commit(M: Array, u: Array, advanced: Array) -> Array:
    wide, M_next = np.concatenate([f32(M), f32(u).transpose(0, 2, 1)], axis=2), f32(M).copy()
    for b in range(len(M)):
        begin = advanced[b]
        M_next[b] = wide[b, :, begin : begin + M.shape[2]]
    return M_next


def conv_commit_path(M: Array, u: Array, path: Array) -> Array:
    M, u = f32(M).copy(), f32(u)
    for b in range(len(M)):
        for hop in range((path[b] >= 0).sum()):
            M[b] = np.concatenate([M[b, :, 1:], u[b, path[b, hop], :, None]], axis=1)
    return M


def empty(tokens: Array) -> Run:
    rows, nodes = tokens.shape
    said, path = (np.full((rows, nodes), -1, dtype=np.int64) for _ in range(2))
    return said, path, np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=bool)


def greedy(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Run:
    said, path, advanced, ended = empty(tokens)
    for b in range(len(tokens)):
        node = 0 if parents[b, 0] == -1 else None
        ended[b] = node is not None and budget[b] == 0
        while node is not None and not ended[b]:
            token, n = choice[b, node], advanced[b]
            said[b, n], path[b, n], advanced[b] = token, node, n + 1
            ended[b] = token in eos or advanced[b] == budget[b]
            right = np.flatnonzero((parents[b] == node) & (tokens[b] == token))
            node = right[0] if len(right) else None
    return said, path, advanced, ended


def rejection(
    tokens: Array, parents: Array, p: Array, q: Array, coins: Array, picks: Array, budget: Array,
    eos: tuple[int, ...], law: str,
) -> Run:  # fmt: skip
    said, path, advanced, ended = empty(tokens)
    for b in range(len(tokens)):
        node, going = 0, parents[b, 0] == -1
        ended[b] = going and budget[b] == 0
        while going and not ended[b]:
            weights, draft = f32(p[b, node]), node + 1
            going = draft < tokens.shape[1] and parents[b, draft] == node
            if going and q[b, node, token := tokens[b, draft]] > 0:
                ratio = np.float32(p[b, node, token]) / np.float32(q[b, node, token])
                going = coins[b, draft] < ratio
                if not going:
                    weights = np.maximum(weights - f32(q[b, node]), 0)
            else:
                going = False
            if not going:
                total = np.cumsum(weights / weights.sum())
                token = min(np.searchsorted(total, picks[b, node], side="right"), np.flatnonzero(weights)[-1])
            n = advanced[b]
            said[b, n], path[b, n], advanced[b] = token, node, n + 1
            ended[b] = token in eos or advanced[b] == budget[b]
            node = draft
    return said, path, advanced, ended


def adapter() -> Adapter:
    chains = Limits({"tree": ("chain",), "law": ("iid",)}, reason="rejection sampling on a chain")
    operations = {
        "conv.step": Capability(conv_step, CONTRACT),
        "conv.scan": Capability(conv_scan, CONTRACT),
        "conv.commit": Capability(conv_commit, CONTRACT),
        "conv.commit_path": Capability(conv_commit_path, CONTRACT),
        "acceptance.greedy": Capability(greedy, CONTRACT),
        "acceptance.sampled": Capability(rejection, CONTRACT, chains),
    }
    return Adapter("strangers", "1", (Subject("windows", operations),))
