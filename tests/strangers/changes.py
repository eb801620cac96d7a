"""Twenty changes of one index, sign, mask or order each, as they happen: decided before the first of them was judged."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Change:
    """One text of a file replaced by another, the operation that computes wrongly then, and why it happens."""

    name: str
    file: str
    operation: str
    old: str
    new: str
    why: str

    def source(self) -> str:
        """The changed file. Raises: ValueError unless the old text stands in it once."""
        text = (FOLDER / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} stands {text.count(self.old)} times in {self.file}; once is needed")
        return text.replace(self.old, self.new)


R, W = "recurrences.py", "windows.py"
SKIP = "    if D is not None:\n        y += (D[:, None] if D.ndim == 1 else D) * x\n"
GATE = "    if z is not None:\n        y *= silu(z)\n"
BIAS = "    if params.dt_bias is not None:\n        dt = dt + f32(params.dt_bias)\n"
SOFTPLUS = "    if params.dt_softplus:\n        dt = softplus(dt)\n"

CHANGES = (
    Change(
        "output before the update",
        R,
        "ssd.step",
        'np.einsum("bpn, bn -> bp", S_next[:, h]',
        'np.einsum("bpn, bn -> bp", S[:, h]',
        "two states are in scope, and the old one has the shorter name",
    ),
    Change(
        "group by remainder",
        R,
        "ssd.step",
        "g = h // (heads // groups)",
        "g = h % groups",
        "heads of a group are taken to be interleaved; with one group, or one head in each, it is right",
    ),
    Change(
        "no skip in the first head",
        R,
        "ssd.step",
        "        if D is not None:\n            y[:, h] += D[h]",
        "        if D is not None and h:\n            y[:, h] += D[h]",
        "an index is tested where None was meant",
    ),
    Change(
        "decay of the token before",
        R,
        "ssd.scan",
        "decay[:, t, :, None, None] * S",
        "decay[:, t - 1, :, None, None] * S",
        "a chunked form that shifts its decays once too often; the first token has the last one's",
    ),
    Change(
        "B and C swapped",
        R,
        "ssd.scan",
        "for a in (window.B, window.C))\n    y = np.empty_like(x)\n    for t",
        "for a in (window.C, window.B))\n    y = np.empty_like(x)\n    for t",
        "both have one shape, and nothing complains",
    ),
    Change(
        "gate before the skip",
        R,
        "ssd.scan",
        f"{SKIP}{GATE}    return y, S",
        f"{GATE}{SKIP}    return y, S",
        "D x is added at the end, as in a kernel that has no gate",
    ),
    Change(
        "softplus is x from 10 on",
        R,
        "ssd.scan",
        "np.where(x > 20, x,",
        "np.where(x > 10, x,",
        "a threshold for half precision, used in float32: wrong by 4.5e-5 at most",
    ),
    Change(
        "parent is the node before",
        R,
        "ssd.verify_tree",
        "after[above[-1]] if len(above)",
        "after[i - 1] if len(above)",
        "the code of a chain, used for a tree; right along the first branch",
    ),
    Change(
        "lower limit of dt ignored",
        R,
        "ssd.verify_tree",
        "np.minimum(np.maximum(dt, low), high)",
        "np.minimum(dt, high)",
        "the default of the lower limit is 0, below which no softplus falls",
    ),
    Change(
        "ring turns one entry early",
        R,
        "ssd.buffered_verify",
        "self.held[b] + t) % RING",
        "self.held[b] + t) % (RING - 1)",
        "the last index is taken for the size; right until the ring turns",
    ),
    Change(
        "bias after softplus",
        R,
        "selective.scan",
        f"{BIAS}{SOFTPLUS}    y =",
        f"{SOFTPLUS}{BIAS}    y =",
        "the bias of the projection is moved past the activation that was fused into it",
    ),
    Change(
        "error of the state that has not decayed",
        R,
        "delta.scan",
        'np.einsum("bhkv, bhk -> bhv", decayed, k',
        'np.einsum("bhkv, bhk -> bhv", S, k',
        "the delta rule without a gate reads S there",
    ),
    Change(
        "eps outside the root",
        R,
        "delta.scan",
        "np.sqrt((a * a).sum(axis=-1, keepdims=True) + np.float32(params.eps))",
        "(np.sqrt((a * a).sum(axis=-1, keepdims=True)) + np.float32(params.eps))",
        "both forms are called L2 norm; for keys of length 1 they differ by 5e-7",
    ),
    Change(
        "strides of another layout",
        W,
        "conv.step",
        "at = b * channels * taps + c * taps + k",
        "at = b * channels * taps + k * channels + c",
        "the pool lies as (tap, channel) in one engine and as (channel, tap) in another",
    ),
    Change(
        "taps reversed",
        W,
        "conv.step",
        "weight[:, k] * M_next",
        "weight[:, taps - 1 - k] * M_next",
        "a convolution in the textbook's sense, where a correlation is meant",
    ),
    Change(
        "window one input late",
        W,
        "conv.scan",
        "wide[:, :, t + 1 + k]",
        "wide[:, :, t + k]",
        "right for a state of w - 1 columns, wrong for one of w",
    ),
    Change(
        "a rejected token kept",
        W,
        "conv.commit",
        "begin = advanced[b]",
        "begin = min(advanced[b] + 1, u.shape[1])",
        "the emitted token is counted as one that entered; right where all was accepted",
    ),
    Change(
        "last accepted draft not committed",
        W,
        "conv.commit_path",
        "range((path[b] >= 0).sum())",
        "range((path[b] >= 0).sum() - 1)",
        "accepted drafts are counted without the root",
    ),
    Change(
        "last of twins",
        W,
        "acceptance.greedy",
        "node = right[0]",
        "node = right[-1]",
        "a scatter by token: the later sibling overwrites the earlier",
    ),
    Change(
        "no residual after a rejection",
        W,
        "acceptance.sampled",
        "weights = np.maximum(weights - f32(q[b, node]), 0)",
        "weights = np.maximum(weights, 0)",
        "the token after a rejection is drawn from the target itself, as the bonus token is",
    ),
)
"""In the order in which they were decided."""
