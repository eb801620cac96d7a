"""Acceptance in one kernel, greedy or naive: walk, end of sequence and budget, as in `walk.walk` and `walk.cut`.

    t_n = the first most likely token after node n, or the one drawn; without finite logits it is padding     (1)
    run = the kernel's walk, cut at eos and budget                                                            (2)

With (1) a run stops before a node whose logits are not finite, and a sequence with such a root emits nothing and has ended.
The kernel does not find stop sequences of several tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..engine.sequences import Sequences
from ..engine.window import Verdict, Window
from ..operations import Emitted


def greedy(
    rule: Callable[..., Emitted],
    window: Window,
    logits: Tensor,
    sequences: Sequences,
    said: Callable[[Tensor], Tensor] | None = None,
) -> Verdict:
    """The verdict of `rule`, the launcher of `ssmspec_kernels.tokens.accept_greedy`, on the logits (b, t, i).

    `said` replaces the most likely tokens by other choices (b, t).
    """
    top, choice = logits.max(-1)
    choice = choice if said is None else said(choice)
    bad = top.isnan()
    return verdict(rule, window, bad, choice, sequences)


def naive(
    rule: Callable[..., Emitted], window: Window, p: Tensor, picks: Tensor, bad: Tensor, sequences: Sequences
) -> Verdict:
    """The verdict of `rule`, the launcher of `ssmspec_kernels.tokens.accept_sampled`, under the law naive: the tokens are
    drawn from p (b, t, i) by the random numbers `picks` (b, t); `bad` (b, t) are the nodes whose logits are not finite."""

    def drawn(tokens: Tensor, parents: Tensor, p: Tensor, budget: Tensor, **given: Any) -> Emitted:
        return rule(tokens, parents, p, picks, budget, law="naive", **given)

    return verdict(drawn, window, bad, p, sequences)


def verdict(rule: Callable[..., Emitted], window: Window, bad: Tensor, chosen_by: Tensor, sequences: Sequences) -> Verdict:
    """(2), by a launcher that takes tokens, parents, what the tokens are chosen by, and budgets."""
    b, t = bad.shape
    plain = window.parents is None and window.lengths is None  # the kernel sees which rows are padding
    tree = torch.arange(-1, t - 1, device=bad.device).expand(b, t) if plain else window.tree()
    parents = torch.where(bad, -2, tree)  # (1)
    held = torch.full((2, b, t), -1, device=bad.device)  # the kernel does not write rows of padding
    advanced, ended = torch.zeros_like(held[0, :, 0]), torch.zeros_like(bad[:, 0])
    shared = sequences.same_ends
    assert shared is not None, "the kernel takes one set of end tokens for all rows"
    eos = shared if len(shared) else None
    run = rule(
        window.tokens, parents, chosen_by, sequences.budget, eos=eos, ended=sequences.ended, slots=window.slots,
        out=Emitted(held[0], held[1], advanced, ended),
    )  # (2)  # fmt: skip
    row = torch.arange(0, b, window.drafts, device=bad.device)
    over = run.ended | bad[:, 0]
    if window.drafts == 1:
        return Verdict(Emitted(run.tokens, run.path, run.advanced, over), row, window.slots)
    row = row + run.advanced.view(-1, window.drafts).argmax(1)
    return Verdict(Emitted(run.tokens[row], run.path[row], run.advanced[row], over[row]), row, window.sequences)
