"""The strategies, for other projects too: `from property_tests import strategies`. None of them needs an implementation.

    parameters             models: every kind of layer, every option, gentle to hard decay, large states, odd sizes
    token_trees            every shape up to 64 nodes, equal tokens among siblings, padding nodes
    acceptance_patterns    what a window accepts: none, some, all, a path that is not a prefix, a cut run
    sampling_settings      temperature, top-k, top-p, penalties, minimum length, ends of a sequence
    draft_distributions    p and q: equal, disjoint, one step of 2^-24 apart, p / q on that grid, processed
    rounds                 one window to be accepted: a tree, p and q after each node, noise at the thresholds of decisions
    batch_schedules        join, leave, preempt, return, fork, move, reuse, pad; rows with and without drafts

Everything shrinks to the smallest example: a root alone, one plain layer, all accepted, no setting, p = q, one prompt.
"""

from .drawing.acceptances import Acceptance, acceptance_patterns
from .drawing.distributions import Law, Round, noise, rounds
from .drawing.distributions import pairs as draft_distributions
from .drawing.models import Spec, build
from .drawing.samplings import sampling_settings
from .drawing.schedules import Schedule, batch_schedules
from .drawing.specs import Sizes
from .drawing.specs import specs as parameters
from .drawing.token_trees import SHAPES, TokenTree, parents, token_trees

__all__ = [
    "SHAPES",
    "Acceptance",
    "Law",
    "Round",
    "Schedule",
    "Sizes",
    "Spec",
    "TokenTree",
    "acceptance_patterns",
    "batch_schedules",
    "build",
    "draft_distributions",
    "noise",
    "parameters",
    "parents",
    "rounds",
    "sampling_settings",
    "token_trees",
]
