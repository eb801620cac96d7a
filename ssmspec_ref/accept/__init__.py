"""Acceptance: which drafts are accepted, and what is emitted after them. Every rule is lossless; `exact_law` proves it.

greedy      a chain, a tree, a batch of trees on a device
rejection   a sampled chain
multi_step  a sampled or deterministic tree; `proposals` gives the distribution of each node, `draws` draws the nodes
naive       any tree, without q
sampled     multi_step or naive, chosen by the name of the drafts' distribution
drafts      several drafts for one sequence
processors  from logits to distributions, the same for target and draft
stop        cuts a run at an end of sequence, a stop sequence, or the budget

All but `greedy.sweep` treat one sequence. They run on floats or on fractions, and take their randomness from a `Dice`.
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
