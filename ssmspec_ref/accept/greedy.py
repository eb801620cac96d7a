"""Greedy acceptance: a draft is accepted if it is the token that the target would choose.

t_n = argmax p(. | n), the lowest token on ties                     (1)
go to the first child of n that holds t_n; else emit t_n and stop   (2)

Three forms: the longest prefix of a chain, the walk down a tree, and a sweep over all nodes of a batch, which a device can
run without synchronising with the host.
"""

from collections.abc import Sequence

import numpy as np

from ..checks import checked
from ..errors import ProbabilityError, ShapeMismatch
from ..shapes import Lengths, Logits, Parents, Path, Tokens
from ..tree import PADDING, check_parents
from .draft_tree import DraftTree
from .emitted import Emitted


@checked
def choices(logits: Logits) -> Tokens:
    """The target's choice after every token of a window (1).

    Raises: ProbabilityError for NaN or +inf, or a row that is all -inf.
    """
    best = logits.max(axis=2)
    if not np.isfinite(best).all():
        b, t = np.argwhere(~np.isfinite(best))[0]
        raise ProbabilityError(
            f"logits[{b}, {t}] have the maximum {best[b, t]}; give finite logits, or -inf for masked tokens"
        )
    return logits.argmax(axis=2)  # (1)


def chain(draft: Sequence[int], choice: Sequence[int]) -> Emitted:
    """The longest prefix of a chain that equals the target's choices, and the target's next choice.

    `choice[t]` follows token t of the window; `choice[0]` follows the root.

    Raises: ShapeMismatch unless there is exactly one more choice than drafts.
    Source: Snakes and Ladders, section 3.1.
    """
    _check_choices(len(choice), len(draft) + 1)
    count = next((t for t, token in enumerate(draft) if token != choice[t]), len(draft))
    return Emitted((*map(int, draft[:count]), int(choice[count])), tuple(range(count + 1)))


def walk(tree: DraftTree, choice: Sequence[int]) -> Emitted:
    """Walk down a tree from the root by equation (2) until it emits. A leaf emits its own choice.

    Raises: ShapeMismatch unless there is one choice per node.
    Source: STree, section 5.1 (greedy verification).
    """
    _check_choices(len(choice), len(tree))
    node, tokens = 0, [int(choice[0])]
    while (child := tree.child(node, tokens[-1])) is not None:  # (2)
        node = child
        tokens.append(int(choice[node]))
    return Emitted(tuple(tokens), tree.path(node))


@checked
def sweep(tokens: Tokens, parents: Parents, choice: Tokens) -> tuple[Tokens, Path, Lengths]:
    """Walk every row at once, in fixed shapes. Returns the emitted tokens and the accepted path, padded with -1, and
    `advanced`.

    ok_0 = 1,  ok_i = ok_parent(i) and token_i = t_parent(i) and no earlier sibling holds token_i   (3)
    last = the node with ok = 1 of the greatest depth                                               (4)
    path = last and its parents, root first                                                         (5)
    emitted = the tokens of the path after the root, then t_last                                    (6)

    The third condition of (3) makes the nodes with ok = 1 a single path. Without it, a second sibling with the same token may
    lead to a deeper node: the target would choose these tokens too, but the path differs from the walk's.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, NotTopological.
    """
    check_parents(parents)
    rows, nodes = tokens.shape
    every = np.arange(rows)
    ok = np.zeros((rows, nodes), dtype=bool)
    depth = np.zeros((rows, nodes), dtype=np.int64)
    ok[:, 0] = True
    for i in range(1, nodes):
        parent = np.maximum(parents[:, i], 0)
        twin = ((parents[:, :i] == parents[:, i, None]) & (tokens[:, :i] == tokens[:, i, None])).any(axis=1)
        said = tokens[:, i] == choice[every, parent]
        ok[:, i] = (parents[:, i] != PADDING) & ok[every, parent] & said & ~twin  # (3)
        depth[:, i] = depth[every, parent] + 1
    last = np.where(ok, depth, -1).argmax(axis=1)  # (4)
    advanced = depth[every, last] + 1
    path = np.full((rows, nodes), -1, dtype=np.int64)
    node = last
    for hop in range(nodes):
        live = hop < advanced
        path[every[live], (advanced - 1 - hop)[live]] = node[live]  # (5)
        node = np.maximum(parents[every, node], 0)
    follows = np.take_along_axis(choice, np.maximum(path, 0), axis=1)
    return np.where(path >= 0, follows, -1), path, advanced  # (6)


def _check_choices(came: int, needed: int) -> None:
    if came != needed:
        raise ShapeMismatch(f"choice has {came} tokens, but the window has {needed}; give one for each, the root included")
