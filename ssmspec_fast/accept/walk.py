"""From the target's choice at every node to a verdict: the walk of each row, the best row of a sequence, the cut.

    t_n = choice after node n; emit it, go to the first child of n with this token, stop if there is none     (1)
    of several rows of one sequence, the one that emits the most, the first of equals                         (2)
    n   = the first token that ends the sequence, or the budget, whichever is less                            (3)

Every visited node enters the path, so it has as many nodes as there are emitted tokens. With the choices of greedy
decoding this is greedy verification; (2) keeps it lossless because every row follows the same choices.
"""

import torch
from torch import Tensor

from ..engine.sequences import NONE, Sequences
from ..engine.window import Verdict, Window
from ..operations import Emitted
from ..operations.slots import index


def walk(tokens: Tensor, parents: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
    """Emitted tokens and path (b, t), -1 after them (1)."""
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
    """The chosen row of each sequence (n), and its emitted tokens and path (2)."""
    advanced = (path >= 0).sum(1).view(-1, window.drafts)
    row = torch.arange(len(advanced), device=path.device) * window.drafts + advanced.argmax(1)
    return row, emitted[row], path[row]


def ends(emitted: Tensor, sequences: Sequences, slots: Tensor) -> Tensor:
    """Which emitted tokens (n, t) end their sequence: an end of sequence, or the last token of a stop sequence."""
    at, t = index(slots), emitted.shape[1]
    found = (emitted[..., None] == sequences.eos[at][:, None]).any(-1)
    if not sequences.asked.stops:
        return found
    stop = sequences.stop[at][:, None]
    back = stop.shape[-1] - 1
    places = sequences.length[at][:, None] - back + torch.arange(back, device=slots.device)
    before = torch.where(places >= sequences.prompt[at][:, None], sequences.tokens[at[:, None], places.clamp_min(0)], -1)
    run = torch.cat([before, emitted], dim=1).unfold(1, back + 1, 1)[:, :t, None]
    there = stop[..., -1] != NONE
    return found | (((run == stop) | (stop == NONE)).all(-1) & there).any(-1)


def broken(logits: Tensor) -> Tensor:
    """The nodes (b, t) whose logits are not finite."""
    return logits.isnan().any(-1)


def cut(
    row: Tensor, emitted: Tensor, path: Tensor, sequences: Sequences, slots: Tensor, bad: Tensor | None = None
) -> Verdict:
    """The runs cut to what is emitted (3); padding and sequences that have ended emit nothing.

    A run stops before the first of its `bad` nodes (b, t), as plain decoding would; a bad node off the path is ignored.
    A sequence whose root is bad has failed: it emits nothing and has ended, which distinguishes it from all others.
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
