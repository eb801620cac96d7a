"""Acceptance by another law than the one that drafts and target have, over the reference's."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ssmspec_ref.accept import UniformDice
from ssmspec_ref.accept.draft_tree import unpadded
from ssmspec_ref.accept.emitted import Emitted
from ssmspec_ref.accept.sampled import sampled
from ssmspec_ref.contract import Adapter
from ssmspec_ref.shapes import Array

from ...adapters.reference_parts.acceptance import Runs, accept_greedy, accept_sampled, padded
from ...judge.draw import stored
from ..single import single


def cap_before_stop(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """The budget is tested before the end of sequence: tokens between the two are emitted. sgl-project/sglang#33758."""
    stopped, free = (accept_greedy(tokens, parents, choice, budget, ends) for ends in (eos, ()))
    capped = free[3] & (free[2] >= budget)
    return tuple(np.where(capped.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in zip(stopped, free, strict=True))  # type: ignore[return-value]


def zero_matches(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """A node without a child is compared with token 0, the filling of a masked load. vllm-project/vllm#29274."""
    emitted, path, advanced, ended = accept_greedy(tokens, parents, choice, budget, eos)
    emitted = emitted.copy()
    for b, count in enumerate(advanced):
        if 0 < count < tokens.shape[1] and not ended[b] and emitted[b, count - 1] == 0:
            emitted[b, count] = 0
    return emitted, path, advanced, ended


def accepts_everything(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """Every first child is accepted."""
    agreed = choice.copy()
    for b, row in enumerate(parents):
        for node in range(tokens.shape[1] - 1, 0, -1):
            if row[node] >= 0:
                agreed[b, row[node]] = tokens[b, node]
    return accept_greedy(tokens, parents, agreed, budget, eos)


def raw_q(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """The ratio divides by a softmax at temperature 2, though the draft was drawn at 1. huggingface/transformers#47932."""
    flat = np.sqrt(q)
    return accept_sampled(tokens, parents, p, flat / flat.sum(axis=2, keepdims=True), *rest)


def narrow_q(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """The ratio takes the drafts' law in bf16, though they were drawn from the one in float64. deepseek-ai/DeepSpec#31."""
    narrow = stored(q, "bf16")
    return accept_sampled(tokens, parents, p, narrow / narrow.sum(axis=2, keepdims=True), *rest)


def certain_by_q(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """Deterministic drafts are accepted as if drawn from q. apple/ml-recurrent-drafter#6."""
    coins, picks, budget, eos, law = rest
    return accept_sampled(tokens, parents, p, q, coins, picks, budget, eos, "iid" if law == "point_mass" else law)


def drawn_as_certain(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """The drafts' distributions are not passed on: sampled drafts are treated as deterministic. vllm-project/vllm#40269."""
    coins, picks, budget, eos, law = rest
    return accept_sampled(tokens, parents, p, q, coins, picks, budget, eos, "point_mass" if law == "iid" else law)


def q_of_another_request(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """The drafts' distributions are in the order of the previous batch. vllm-project/vllm#41044."""
    return accept_sampled(tokens, parents, p, np.roll(q, 1, axis=0), *rest)


def p_of_the_row_before(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """A node is compared with the target's distribution of the previous row. NVIDIA/TensorRT-LLM#15098."""
    return accept_sampled(tokens, parents, np.concatenate([p[:, :1], p[:, :-1]], axis=1), q, *rest)


def rejected_stays(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """A rejected child is not removed from the target's distribution for its siblings and the last draw.
    SafeAILab/EAGLE#74."""
    coins, picks, budget, eos, law = rest
    if law != "point_mass":
        return accept_sampled(tokens, parents, p, q, *rest)
    return padded(_walks(tokens, parents, p, coins, picks, _by_coin), tokens.shape[1], budget, eos)


def sample_for_each(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """Each child is compared with a separate sample instead of all with one sample of their parent.
    foundation-model-stack/fms-extras#12."""
    coins, picks, budget, eos, law = rest
    if law != "naive":
        return accept_sampled(tokens, parents, p, q, *rest)
    return padded(_walks(tokens, parents, p, coins, picks, _by_sample), tokens.shape[1], budget, eos)


def _by_coin(dice: UniformDice, weights: list[float], token: int, child: int) -> bool:
    return dice.bern(weights[token], child)


def _by_sample(dice: UniformDice, weights: list[float], token: int, child: int) -> bool:
    return dice.pick(weights, child) == token


def _walks(tokens: Array, parents: Array, p: Array, coins: Array, picks: Array, stands: Callable[..., bool]) -> list[Emitted]:
    """A walk for each row."""
    noise = zip(coins.tolist(), picks.tolist(), strict=True)
    return [_walk(b, tokens, parents, p, UniformDice(*of_row), stands) for b, of_row in enumerate(noise)]


def _walk(b: int, tokens: Array, parents: Array, p: Array, dice: UniformDice, stands: Callable[..., bool]) -> Emitted:
    """Walk to the first accepted child, and so on; then emit a token from the target's full distribution."""
    tree, node = unpadded(tokens[b], parents[b]), 0
    laws = p[b].tolist()
    while (child := next((c for c in tree.children(node) if stands(dice, laws[node], tree.tokens[c], c)), None)) is not None:
        node = child
    return Emitted((*tree.drafted(node), dice.pick(laws[node], node)), tree.path(node))


class LastOfTheVocabulary(UniformDice):
    """Picks by a running sum in single precision, and where that ends below the noise, takes the last of the vocabulary."""

    def pick(self, weights: Any, node: int) -> int:
        row = np.array([float(w) for w in weights], dtype=np.float32)
        return min(
            int(np.searchsorted(np.cumsum(row, dtype=np.float32), float(self.picks[node]), side="right")), len(row) - 1
        )


def last_of_the_vocabulary(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """Where a sum in single precision ends below the noise the last token of the vocabulary is taken, with probability 0."""
    coins, picks, budget, eos, law = rest
    runs = []
    for b, row in enumerate(zip(tokens, parents, strict=True)):
        tree = unpadded(*row)
        dice = LastOfTheVocabulary(coins[b].tolist(), picks[b].tolist())
        runs.append(sampled(tree, law, p[b, : len(tree)].tolist(), q[b, : len(tree)].tolist(), dice))
    return padded(runs, tokens.shape[1], budget, eos)


def ends_by_bisection(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """The tokens that end a sequence are searched by bisection, as if they were sorted."""
    found = [i for i in range(int(max(tokens.max(), choice.max())) + 1) if _bisected(eos, i)]
    return accept_greedy(tokens, parents, choice, budget, tuple(found))


def _bisected(ends: tuple[int, ...], token: int) -> bool:
    low, high = 0, len(ends)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if ends[middle] < token else (low, middle)
    return low < len(ends) and ends[low] == token


def noise_of_the_row(tokens: Array, parents: Array, p: Array, q: Array, coins: Array, picks: Array, *rest: Any) -> Runs:
    """Noise is indexed by the batch row, which has changed, instead of by the request. vllm-project/vllm#35398."""
    return accept_sampled(tokens, parents, p, q, np.roll(coins, 1, axis=0), np.roll(picks, 1, axis=0), *rest)


def coin_reused(tokens: Array, parents: Array, p: Array, q: Array, coins: Array, picks: Array, *rest: Any) -> Runs:
    """The coin of a node also picks its last token. sgl-project/sglang#7207."""
    return accept_sampled(tokens, parents, p, q, coins, coins, *rest)


def counts_all(tokens: Array, parents: Array, p: Array, q: Array, *rest: Any) -> Runs:
    """A rejected sibling is counted as accepted. vllm-project/vllm#2658."""
    emitted, path, advanced, ended = accept_sampled(tokens, parents, p, q, *rest)
    siblings = np.array([np.sum(row[1:] == 0) > 1 for row in parents])
    return emitted, path, advanced + (siblings & (advanced == 1)), ended


FAULTS: dict[str, tuple[tuple[Callable[..., Any], str], ...]] = {
    "acceptance.greedy": (
        (cap_before_stop, "STOP"),
        (zero_matches, "GREEDY"),
        (accepts_everything, "ACCEPT-RULE"),
        (ends_by_bisection, "STOP"),
    ),
    "acceptance.sampled": (
        (raw_q, "Q-MISMATCH"),
        (narrow_q, "Q-MISMATCH"),
        (certain_by_q, "Q-MISMATCH"),
        (drawn_as_certain, "Q-MISMATCH"),
        (q_of_another_request, "Q-MISMATCH"),
        (p_of_the_row_before, "P-MISMATCH"),
        (rejected_stays, "ACCEPT-RULE"),
        (sample_for_each, "ACCEPT-RULE"),
        (noise_of_the_row, "RNG"),
        (coin_reused, "RNG"),
        (counts_all, "ACCEPT-RULE"),
        (last_of_the_vocabulary, "RNG"),
    ),
}
"""The operation of each, and its bug class."""


def adapter() -> Adapter:
    return Adapter("faulty sampling", "1", tuple(single(o, run) for o, runs in FAULTS.items() for run, _ in runs))
