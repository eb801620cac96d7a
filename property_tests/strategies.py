"""What is drawn, for other projects too: `from property_tests import strategies`. None of it needs an implementation.

    parameters             models: every kind of layer, every option, gentle to hard decay, large states, odd sizes
    token_trees            every shape to 64 nodes, twins among siblings, padding nodes
    acceptance_patterns    what of a window is accepted: none, some, all, a path that is no prefix, a cut run
    sampling_settings      temperature, top-k, top-p, penalties, minimum length, ends of a sequence
    draft_distributions    p and q: equal, disjoint, one step of 2^-24 apart, p / q on that grid, processed
    rounds                 one window to be accepted: a tree, p and q after each node, noise where decisions turn
    batch_schedules        join, leave, preempt, return, fork, move, reuse, pad; rows with and without drafts

Everything shrinks to the least: a root alone, one plain layer, all accepted, no setting, p = q, one prompt.
"""

from .acceptances import Acceptance, acceptance_patterns
from .distributions import Law, Round, noise, rounds
from .distributions import pairs as draft_distributions
from .models import Spec, build
from .samplings import sampling_settings
from .schedules import Schedule, batch_schedules
from .specs import Sizes
from .specs import specs as parameters
from .token_trees import SHAPES, TokenTree, parents, token_trees

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
