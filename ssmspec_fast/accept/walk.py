"""From the target's choice at every node to a verdict: the walk of each row, the best row of a sequence, the cut.

    t_n = choice after node n; emit it, go to the first child of n that holds it, stop where there is none    (1)
    of several rows of one sequence, the one that emits most, the first on ties                               (2)
    n   = the first token that ends the sequence, or the budget, whichever is less                            (3)

Every node that is gone to enters the path, which so has as many nodes as there are tokens emitted. With the choices of greedy
decoding this is greedy verification; (2) keeps it lossless because every row follows the same choices.
"""

import torch
from torch import Tensor

from ..operations import Emitted
from ..operations.slots import index
from ..sequences import Sequences
from ..window import Verdict, Window


def walk(tokens: Tensor, parents: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
    """Emitted tokens and path (b, t), -1 behind them (1)."""
    rows, t = torch.arange(len(tokens), device=tokens.device), tokens.shape[1]
    node = torch.where(parents[:, 0] == -1, 0, -1)
    emitted, path = torch.full_like(choice, -1), torch.full_like(choice, -1)
    for step in range(t):
        on, at = node >= 0, node.clamp_min(0)
        said = choice[rows, at]
        emitted[:, step], path[:, step] = torch.where(on, said, -1), torch.where(on, node, -1)
        child = (parents == at[:, None]) & (tokens == said[:, None]) & on[:, None]
        node = torch.where(child.any(1), child.long().argmax(1), -1)
    return emitted, path


def best(emitted: Tensor, path: Tensor, window: Window) -> tuple[Tensor, Tensor, Tensor]:
    """The row that stands for each sequence (n), and its emitted tokens and path (2)."""
    advanced = (path >= 0).sum(1).view(-1, window.drafts)
    row = torch.arange(len(advanced), device=path.device) * window.drafts + advanced.argmax(1)
    return row, emitted[row], path[row]


def ends(emitted: Tensor, sequences: Sequences, slots: Tensor) -> Tensor:
    """Which emitted tokens (n, t) end their sequence: an end of sequence, or the last token of a stop sequence."""
    found = torch.isin(emitted, sequences.eos) & (emitted >= 0)
    at, t = index(slots), emitted.shape[1]
    for stop in sequences.stop:
        back = len(stop) - 1
        places = sequences.length[at][:, None] - back + torch.arange(back, device=slots.device)
        before = torch.where(places >= sequences.prompt[at][:, None], sequences.tokens[at[:, None], places.clamp_min(0)], -1)
        run = torch.cat([before, emitted], dim=1)
        found |= (run.unfold(1, len(stop), 1) == stop).all(2)[:, :t]
    return found


def broken(logits: Tensor) -> Tensor:
    """The nodes (b, t) whose logits are no numbers."""
    return logits.isnan().any(-1)


def cut(
    row: Tensor, emitted: Tensor, path: Tensor, sequences: Sequences, slots: Tensor, bad: Tensor | None = None
) -> Verdict:
    """The runs as far as they are emitted (3); padding and sequences that have ended emit nothing.

    A run stops before the first of its `bad` nodes (b, t), as plain decoding would; what a bad node off the path says is not
    read. A sequence whose root is bad has failed: it emits nothing and has ended, and that tells it from all others.
    """
    at, t = index(slots), emitted.shape[1]
    steps = torch.arange(t, device=slots.device)
    hit = ends(emitted, sequences, slots)
    first = torch.where(hit.any(1), hit.long().argmax(1) + 1, t)
    active = (slots >= 0) & ~sequences.ended[at]
    count = (path >= 0).sum(1)
    if bad is not None:
        stuck = torch.gather(bad[row], 1, path.clamp_min(0)) & (path >= 0)
        count = torch.where(stuck.any(1), stuck.long().argmax(1), count)
        active = active & ~stuck[:, 0]
    budget = torch.where(active, sequences.budget[at], 0)
    advanced = torch.minimum(torch.minimum(count, first), budget)
    kept = steps < advanced[:, None]
    by_end = (hit & kept).any(1)
    run = Emitted(
        torch.where(kept, emitted, -1), torch.where(kept, path, -1), advanced, ~active | by_end | (advanced >= budget)
    )
    return Verdict(run, row, slots)
