"""Speculative decoding of a whole model, whatever the layers use to undo what is rejected.

feed     = tokens to bring again | root | drafts           (1)
logits   = model(feed), every layer by its path            (2)
verdict  = accept(window, logits)                          (3)
commit   : root and accepted drafts enter every layer      (4)
new root = the token that the target chose after them      (5)

A window may be a chain, several chains for each sequence, or a tree. A path is a module of `backtrack`: `start`, `verify`,
`commit`, `restore`, `refeed`. Tokens emitted and tokens entering the state are equally many: the root enters as the new root
leaves, so cutting an emission at `eos` or at the budget cuts the commitment by as much.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from . import model as lm
from .backtrack import Accepted, Backtrack, Draft
from .decode import Choose, Row, Sequences, Settings, greedy, padded, prefill
from .errors import AcceptanceError, ShapeMismatch, Unsupported
from .lengths import chain_path, first
from .model import Layer, Model, ModelState
from .records import Record
from .shapes import Lengths, Logits, Mask, Parents, Residual, Tokens

Path: TypeAlias = Backtrack[Any, Any]
Kept: TypeAlias = tuple[Any, ...]  # of each layer


@dataclass(frozen=True)
class Window(Record):
    """What is verified at once: roots and drafts, a row for each draft (see `Draft` for the other fields).

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    """

    tokens: Tokens
    lengths: Lengths | None = None
    sequence: Lengths | None = None
    parents: Parents | None = None

    def live(self) -> Mask:
        rows, longest = self.tokens.shape
        return first(np.full(rows, longest) if self.lengths is None else self.lengths, longest)

    def rows_of(self, b: int) -> list[int]:
        """The rows that continue sequence b."""
        if self.sequence is None:
            return [b]
        return [int(r) for r in np.flatnonzero(self.sequence == b)]


@dataclass(frozen=True)
class Verdict:
    """What was accepted, and what each sequence emits for it: the accepted drafts and the target's choice after them."""

    accepted: Accepted
    emitted: tuple[Row, ...]


Accept: TypeAlias = Callable[[Window, Logits, Sequences], Verdict]
Drafter: TypeAlias = Callable[[Sequences], Window]


@dataclass(frozen=True)
class Pending:
    """What each layer holds before the verdict, and how many tokens were brought again."""

    layers: tuple[Any, ...]
    lag: Lengths


def start(state: ModelState, model: Model, path: Path) -> Kept:
    """What the layers keep before the first window."""
    return tuple(path.start(s) for s in state)


def refeed(kept: Kept, model: Model, path: Path) -> Lengths:
    """How many committed tokens of each sequence the next window must bring again: the longest lag of a layer."""
    return np.max([path.refeed(k) for k in kept], axis=0)


def restore(kept: Kept, sequences: Sequences, model: Model, path: Path) -> ModelState:
    """The state that plain decoding would hold now: what the layers restore, advanced by the tokens that they lack.

    Raises: as the path's `restore`.
    """
    state = tuple(path.restore(k, block.layer.mixer) for k, block in zip(kept, model.blocks, strict=True))
    tokens, live = padded(behind(refeed(kept, model, path), sequences))
    return lm.scan(state, tokens, model, live)[1] if tokens.shape[1] else state


def behind(lag: Lengths, sequences: Sequences) -> tuple[Row, ...]:
    """The last `lag` committed tokens of each sequence."""
    committed = (sequences.committed(b) for b in range(len(sequences)))
    return tuple(row[len(row) - int(n) :] for n, row in zip(lag, committed, strict=True))


def feed(window: Window, lag: Lengths, sequences: Sequences) -> Window:
    """The window as the layers receive it: the tokens to bring again stand before the root of every live row (1).

    Raises: Unsupported for a tree behind tokens to bring again.
    """
    if not lag.any():
        return window
    if window.parents is not None:
        raise Unsupported(
            "a path that brings committed tokens again verifies rows, not trees; give each path of the tree as a row"
        )
    again, live = behind(lag, sequences), window.live()
    sequence = range(len(window.tokens)) if window.sequence is None else window.sequence
    rows = [
        again[b] + tuple(row[real]) if real[0] else () for b, row, real in zip(sequence, window.tokens, live, strict=True)
    ]
    tokens, real = padded(tuple(rows))
    return Window(tokens, real.sum(axis=1), window.sequence)


def verify(kept: Kept, sequences: Sequences, window: Window, model: Model, path: Path) -> tuple[Logits, Pending]:
    """The logits at every token of a window, (1) and (2); no state is written.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, LengthError, NotTopological, ParameterError, Unsupported.
    """
    check_roots(window, sequences)
    lag = refeed(kept, model, path)
    fed = feed(window, lag, sequences)  # (1)

    def run(i: int, layer: Layer, u: Residual) -> tuple[Residual, Any]:
        inputs, gate = layer.inputs(u)
        y, pending = path.verify(kept[i], Draft(inputs, fed.lengths, fed.sequence, fed.parents), layer.mixer)
        return layer.output(y, gate), pending

    logits, pending = lm.through(fed.tokens, model, run)  # (2)
    offset = lag if window.sequence is None else lag[window.sequence]
    index = np.minimum(offset[:, None] + np.arange(window.tokens.shape[1]), fed.tokens.shape[1] - 1)
    return np.take_along_axis(logits, index[:, :, None], axis=1), Pending(pending, lag)


def commit(pending: Pending, accepted: Accepted, model: Model, path: Path) -> Kept:
    """Root and accepted drafts enter every layer (4). Raises: AcceptanceError."""
    return tuple(path.commit(p, accepted, block.layer.mixer) for p, block in zip(pending.layers, model.blocks, strict=True))


def check_roots(window: Window, sequences: Sequences) -> None:
    """Raise ShapeMismatch unless every row starts with the root of its sequence."""
    roots, rows = sequences.roots(), len(window.tokens)
    if window.sequence is None and rows != len(roots):
        raise ShapeMismatch(f"the window has {rows} rows for {len(roots)} sequences; name the sequence of each row")
    needed = roots if window.sequence is None else roots[window.sequence]
    bad = np.flatnonzero((window.tokens[:, 0] != needed) & window.live()[:, 0])
    if bad.size:
        r = int(bad[0])
        raise ShapeMismatch(f"row {r} starts with token {window.tokens[r, 0]}, but the root of its sequence is {needed[r]}")


def follow(choose: Choose = greedy) -> Accept:
    """The acceptance that changes no token: from the root on, go to the child that carries the target's choice.

    Among several rows of one sequence the longest wins, the lowest row on ties. With `greedy` it is greedy verification, with
    `Sampled` naive sampling: the choice is made from the target alone, so what is emitted is what plain decoding emits.

    Source: Snakes and Ladders, section 4 (N drafts); STree, section 3 (trees).
    """

    def accept(window: Window, logits: Logits, sequences: Sequences) -> Verdict:
        live = window.live()
        best: list[tuple[int, list[int], Row]] = []
        for b in range(len(sequences)):
            walks = [(r, *_walk(window, live, logits, r, b, sequences, choose)) for r in window.rows_of(b)]
            best.append(max(walks, key=lambda walk: len(walk[2]), default=(0, [], ())))
        return Verdict(_accepted(best, window), tuple(emitted for _, _, emitted in best))

    return accept


def _walk(
    window: Window, live: Mask, logits: Logits, r: int, b: int, sequences: Sequences, choose: Choose
) -> tuple[list[int], Row]:
    """The accepted nodes of a row, and what they emit."""
    if not live[r, 0]:
        return [], ()
    nodes, position = [0], len(sequences.emitted[b])
    emitted: list[int] = []
    while True:
        emitted.append(choose(logits[r, nodes[-1]], b, position + len(emitted)))
        children = [j for j in _children(window, r, nodes[-1]) if live[r, j] and window.tokens[r, j] == emitted[-1]]
        if not children:
            return nodes, tuple(emitted)
        nodes.append(children[0])


def _children(window: Window, r: int, node: int) -> list[int]:
    if window.parents is None:
        return [node + 1] if node + 1 < window.tokens.shape[1] else []
    return [int(j) for j in np.flatnonzero(window.parents[r] == node)]


def _accepted(best: list[tuple[int, list[int], Row]], window: Window) -> Accepted:
    advanced = np.array([len(nodes) for _, nodes, _ in best])
    row = None if window.sequence is None else np.array([r for r, _, _ in best])
    path = chain_path(advanced, window.tokens.shape[1])
    for b, (_, nodes, _) in enumerate(best):
        path[b, : len(nodes)] = nodes
    return Accepted(advanced, row, None if window.parents is None else path)


def cut(verdict: Verdict, sequences: Sequences, settings: Settings) -> Verdict:
    """The verdict ended at `eos` and at the budget: fewer tokens emitted, and as many fewer committed.

    Raises: AcceptanceError unless every sequence emits as many tokens as it advances.
    """
    active = sequences.active(settings)
    for b, tokens in enumerate(verdict.emitted):
        if len(tokens) != verdict.accepted.advanced[b]:
            raise AcceptanceError(f"sequence {b} emits {len(tokens)} tokens and advances by {verdict.accepted.advanced[b]}")
    emitted = tuple(
        settings.cut(done, tokens) if active[b] else ()
        for b, (done, tokens) in enumerate(zip(sequences.emitted, verdict.emitted, strict=True))
    )
    advanced = np.array([len(tokens) for tokens in emitted])
    path = verdict.accepted.path
    if path is not None:
        path = np.where(first(advanced, path.shape[1]), path, -1)
    return Verdict(Accepted(advanced, verdict.accepted.row, path), emitted)


def step(
    kept: Kept,
    sequences: Sequences,
    window: Window,
    model: Model,
    path: Path,
    settings: Settings,
    accept: Accept,
) -> tuple[Sequences, Kept]:
    """One window of every sequence, (1) to (5).

    Raises: as `verify` and `commit`.
    """
    logits, pending = verify(kept, sequences, window, model, path)  # (1) (2)
    verdict = cut(accept(window, logits, sequences), sequences, settings)  # (3)
    kept = commit(pending, verdict.accepted, model, path)  # (4)
    return sequences.extended(verdict.emitted), kept  # (5)


def decode(
    prompts: tuple[Row, ...], model: Model, settings: Settings, drafter: Drafter, path: Path, accept: Accept | None = None
) -> tuple[Sequences, ModelState]:
    """Prompts in, tokens out, and the state after them: what `decode.decode` gives, in fewer steps of the model.

    Raises: as `step`.
    """
    sequences, state = prefill(prompts, model)
    kept = start(state, model, path)
    while sequences.active(settings).any():
        sequences, kept = step(kept, sequences, drafter(sequences), model, path, settings, accept or follow())
    return sequences, restore(kept, sequences, model, path)
