"""Rejection sampling on a chain: multi-step sampling whose nodes have one child each.

    accept x_t iff u q_t(x_t) < p_t(x_t)                                                  (1)
    first rejection: emit from norm((p_t - q_t)+);  none: from the target after the last  (2)

Source: arXiv:2211.17192, algorithm 1.
"""

from .multi_step import MultiStep


class Rejection(MultiStep):
    """Chains that were drawn from q.

    Raises: ParameterError (q is missing), Unsupported (a tree, or several rows for one sequence).
    """

    name = "rejection"
    laws = ("iid", "without_replacement")
    trees = False
