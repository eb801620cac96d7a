"""Which drafts stand, and what is emitted after them. Every rule here is lossless, and `exact_law` proves it.

greedy      a chain, a tree, a batch of trees on a device
rejection   a sampled chain
multi_step  a sampled or deterministic tree; `proposals` says by what law its nodes were drawn, `draws` draws them
naive       any tree, without q
sampled     multi_step or naive, by the name of the law of the drafts
drafts      several drafts for one sequence
processors  from logits to distributions, alike for target and draft
stop        the cut at an end of sequence, a stop sequence, or the budget

All but `greedy.sweep` judge one sequence. They run on floats or fractions, and take their randomness from a `Dice`.
"""

from .dice import Dice, EnumeratingDice, GeneratorDice, GumbelDice, UniformDice
from .distribution import Distribution, Number
from .draft_tree import DraftTree
from .emitted import Emitted
from .processors import Sampling
from .stop import Stop

__all__ = [
    "Dice",
    "Distribution",
    "DraftTree",
    "Emitted",
    "EnumeratingDice",
    "GeneratorDice",
    "GumbelDice",
    "Number",
    "Sampling",
    "Stop",
    "UniformDice",
]
