"""Greedy acceptance by one kernel: walk, end of sequence and budget, as `walk.walk` and `walk.cut` decide them.

    t_n = the first most likely token after node n; a node whose logits are no numbers is padding     (1)
    run = the kernel's walk, cut at eos and budget                                                    (2)

With (1) a run stops before a node without numbers, and a root without them emits nothing and has ended. A stop sequence of
several tokens is not the kernel's to find.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..operations import Emitted
from ..sequences import Sequences
from ..window import Verdict, Window


def greedy(
    rule: Callable[..., Emitted],
    window: Window,
    logits: Tensor,
    sequences: Sequences,
    said: Callable[[Tensor], Tensor] | None = None,
) -> Verdict:
    """The verdict of `rule`, the launcher of `ssmspec_kernels.accept_greedy`, on the logits (b, t, i).

    `said` puts other choices (b, t) in the place of the most likely ones.
    """
    top, choice = logits.max(-1)
    choice = choice if said is None else said(choice)
    bad = top.isnan()
    b, t = choice.shape
    plain = window.parents is None and window.lengths is None  # the kernel sees itself which rows are padding
    tree = torch.arange(-1, t - 1, device=choice.device).expand(b, t) if plain else window.tree()
    parents = torch.where(bad, -2, tree)  # (1)
    held = torch.full((2, b, t), -1, device=choice.device)  # the kernel leaves the rows of padding
    advanced, ended = torch.zeros_like(held[0, :, 0]), torch.zeros_like(bad[:, 0])
    eos = sequences.eos if len(sequences.eos) else None
    run = rule(
        window.tokens, parents, choice, sequences.budget, eos=eos, ended=sequences.ended, slots=window.slots,
        out=Emitted(held[0], held[1], advanced, ended),
    )  # (2)  # fmt: skip
    row = torch.arange(0, b, window.drafts, device=choice.device)
    over = run.ended | bad[:, 0]
    if window.drafts == 1:
        return Verdict(Emitted(run.tokens, run.path, run.advanced, over), row, window.slots)
    row = row + run.advanced.view(-1, window.drafts).argmax(1)
    return Verdict(Emitted(run.tokens[row], run.path[row], run.advanced[row], over[row]), row, window.sequences)
