"""From logits to the sampled distribution, without sorting: the rank of a token, and the mass before it, from all pairs."""

import numpy as np

from ssmspec_ref.accept.processors import RowSettings
from ssmspec_ref.shapes import Array


def process(
    logits: Array,
    prompt: Array,
    output: Array,
    temperature: float,
    top_k: int,
    top_p: float,
    repetition: float,
    presence: float,
    frequency: float,
    min_tokens: int,
    eos: tuple[int, ...],
) -> Array:
    """The equations of `ssmspec_ref.accept.processors`, for all rows at once."""
    tokens = np.arange(logits.shape[1])
    times, before = ((history[:, :, None] == tokens).sum(axis=1) for history in (output, prompt))
    scaled = np.where(logits > 0, logits / repetition, logits * repetition)
    seen = np.where(times + before > 0, scaled, logits) - frequency * times - presence * (times > 0)
    early = (output >= 0).sum(axis=1) < min_tokens
    seen = np.where(early[:, None] & np.isin(tokens, eos), -np.inf, seen)
    p = law(seen, temperature)
    if top_k:
        p = only(p, rank(p) < top_k)
    if top_p < 1:
        p = only(p, (ahead(p) * p[:, None]).sum(axis=2) < top_p)
    return p


def process_rows(logits: Array, prompt: Array, output: Array, settings: RowSettings, eos: tuple[int, ...]) -> Array:
    """Each row by itself; what min-p keeps is at least a share of every probability."""
    made = []
    for b in range(len(logits)):
        one, s = slice(b, b + 1), {name: a[b].item() for name, a in vars(settings).items()}
        least = s.pop("min_p")
        p = process(logits[one], prompt[one], output[one], **s, eos=eos)
        made.append(only(p, (p[:, :, None] >= least * p[:, None]).all(axis=2)) if least else p)
    return np.concatenate(made)


def law(logits: Array, temperature: float) -> Array:
    """Softmax; at temperature 0 the first maximum."""
    if temperature == 0:
        return (np.arange(logits.shape[1]) == logits.argmax(axis=1)[:, None]).astype(np.float64)
    weight = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def ahead(p: Array) -> Array:
    """(b i j): whether token j ranks before token i: more probable, or equally probable with a lower index."""
    tokens = np.arange(p.shape[1])
    more, same = p[:, None] > p[:, :, None], p[:, None] == p[:, :, None]
    return np.asarray(more | (same & (tokens < tokens[:, None])))


def rank(p: Array) -> Array:
    return np.asarray(ahead(p).sum(axis=2))


def only(p: Array, kept: Array) -> Array:
    """The kept tokens, renormalised."""
    rest = np.where(kept, p, 0.0)
    return np.asarray(rest / rest.sum(axis=1, keepdims=True))
