"""Acceptance by another law than the one that drafts and target have, over the reference's."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref.accept import UniformDice
from ssmspec_ref.accept.draft_tree import unpadded
from ssmspec_ref.accept.emitted import Emitted
from ssmspec_ref.accept.sampled import sampled
from ssmspec_ref.shapes import Array

from ...adapters.reference_parts.acceptance import Runs, accept_greedy, accept_sampled, padded
from ...judge.draw import stored
from ...mistakes.mistake import after, before, instead
from ...mistakes.operators import rolled
from ..fault import planted
from ..recurrences.tiles import CAPPED, capped


def zero_matches(tokens: Array, emitted: Array, advanced: Array, ended: Array) -> Array:
    """A node without a child is compared with token 0, the filling of a masked load. vllm-project/vllm#29274."""
    emitted = emitted.copy()
    for b, count in enumerate(advanced):
        if 0 < count < tokens.shape[1] and not ended[b] and emitted[b, count - 1] == 0:
            emitted[b, count] = 0
    return emitted


def accepts_everything(tokens: Array, parents: Array, choice: Array) -> Array:
    """Every first child is accepted."""
    agreed = choice.copy()
    for b, row in enumerate(parents):
        for node in range(tokens.shape[1] - 1, 0, -1):
            if row[node] >= 0:
                agreed[b, row[node]] = tokens[b, node]
    return agreed


def normal(law: Array) -> Array:
    return np.asarray(law / law.sum(axis=2, keepdims=True))


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


def _bisected(ends: tuple[int, ...], token: int) -> bool:
    low, high = 0, len(ends)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if ends[middle] < token else (low, middle)
    return low < len(ends) and ends[low] == token


def ends_by_bisection(tokens: Array, choice: Array, eos: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that end a sequence are searched by bisection, as if they were sorted."""
    return tuple(i for i in range(int(max(tokens.max(), choice.max())) + 1) if _bisected(eos, i))


FAULTS = planted(
    *(
        (run, "acceptance.greedy", bug_class)
        for run, bug_class in (
            (instead("cap_before_stop", CAPPED, partial(capped, accept_greedy)), "STOP"),
            (after(emitted=zero_matches), "GREEDY"),
            (before(choice=accepts_everything), "ACCEPT-RULE"),
            (before(eos=ends_by_bisection), "STOP"),
        )
    ),
    *(
        (run, "acceptance.sampled", bug_class)
        for run, bug_class in (
            (
                before(
                    "raw_q",
                    "The ratio divides by a softmax at temperature 2, though the draft was drawn at 1. "
                    "huggingface/transformers#47932.",
                    q=lambda q: normal(np.sqrt(q)),
                ),
                "Q-MISMATCH",
            ),
            (
                before(
                    "narrow_q",
                    "The ratio takes the drafts' law in bf16, though they were drawn from the one in float64. "
                    "deepseek-ai/DeepSpec#31.",
                    q=lambda q: normal(stored(q, "bf16")),
                ),
                "Q-MISMATCH",
            ),
            (
                before(
                    "certain_by_q",
                    "Deterministic drafts are accepted as if drawn from q. apple/ml-recurrent-drafter#6.",
                    law=lambda law: "iid" if law == "point_mass" else law,
                ),
                "Q-MISMATCH",
            ),
            (
                before(
                    "drawn_as_certain",
                    "The drafts' distributions are not passed on: sampled drafts are treated as deterministic. "
                    "vllm-project/vllm#40269.",
                    law=lambda law: "point_mass" if law == "iid" else law,
                ),
                "Q-MISMATCH",
            ),
            (
                before(
                    "q_of_another_request",
                    "The drafts' distributions are in the order of the previous batch. vllm-project/vllm#41044.",
                    q=rolled(),
                ),
                "Q-MISMATCH",
            ),
            (
                before(
                    "p_of_the_row_before",
                    "A node is compared with the target's distribution of the previous row. NVIDIA/TensorRT-LLM#15098.",
                    p=lambda p: np.concatenate([p[:, :1], p[:, :-1]], axis=1),
                ),
                "P-MISMATCH",
            ),
            (rejected_stays, "ACCEPT-RULE"),
            (sample_for_each, "ACCEPT-RULE"),
            (
                before(
                    "noise_of_the_row",
                    "Noise is indexed by the batch row, which has changed, instead of by the request. "
                    "vllm-project/vllm#35398.",
                    coins=rolled(),
                    picks=rolled(),
                ),
                "RNG",
            ),
            (
                before(
                    "coin_reused",
                    "The coin of a node also picks its last token. sgl-project/sglang#7207.",
                    picks=lambda coins: coins,
                ),
                "RNG",
            ),
            (
                after(
                    "counts_all",
                    "A rejected sibling is counted as accepted. vllm-project/vllm#2658.",
                    advanced=lambda advanced, parents: advanced + (((parents[:, 1:] == 0).sum(axis=1) > 1) & (advanced == 1)),
                ),
                "ACCEPT-RULE",
            ),
            (last_of_the_vocabulary, "RNG"),
        )
    ),
)
