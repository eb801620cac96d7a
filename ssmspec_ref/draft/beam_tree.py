"""Beam search that keeps every token it generated."""

import numpy as np

from ..errors import ParameterError
from ..shapes import Probs
from .model import DraftModel, S, top
from .token_tree import TokenTree


def beam_tree(model: DraftModel[S], state: S, root: int, beams: int, steps: int) -> TokenTree:
    """`steps` levels of `beams` nodes: beams * steps + 1 nodes including the root.

    In each step:  score = log p(path) + log p(token | path) over all beams and tokens     (1)
                   keep the `beams` best as the new beams, each a node below its beam      (2)
    A beam that is dropped later stays in the tree. The first step has one beam, the root.

    The children are a deterministic function of the model: verify them greedily, by naive sampling, or as point masses.

    Raises: ParameterError (beams or steps below 1, or beams above the vocabulary).
    Source: STree, section 5.1 (beam search, table 2) and appendix C.
    """
    if beams < 1 or steps < 1:
        raise ParameterError(f"beams and steps are {beams} and {steps}; give at least 1 of each")
    laws: dict[int, Probs] = {}
    tokens, parents = [root], [-1]
    level, score = [0], np.zeros(1)
    for _ in range(steps):
        p, state = model.step(state, np.array([tokens[i] for i in level]))
        if beams > p.shape[1]:
            raise ParameterError(f"beams is {beams}, but the vocabulary has {p.shape[1]} tokens; give at most that many")
        laws.update(zip(level, p, strict=True))
        with np.errstate(divide="ignore"):
            total = score[:, None] + np.log(p)  # (1)
        best = top(total.ravel(), beams)  # (2)
        beam, token = best // p.shape[1], best % p.shape[1]
        parents += [level[b] for b in beam]
        level = list(range(len(tokens), len(tokens) + beams))
        tokens += [int(t) for t in token]
        score, state = total.ravel()[best], model.rows(state, beam)
    q = np.array([laws.get(i, np.zeros(p.shape[1])) for i in range(len(tokens))])
    return TokenTree(np.array(tokens), np.array(parents), q)
