"""Speculative decoding of a whole model, with any backtracking path in its layers.

feed     = tokens to repeat | root | drafts                (1)
logits   = model(feed), every layer by its path            (2)
run      = judge(window, logits), cut at the end           (3)
commit   : root and accepted drafts enter every layer      (4)
new root = the token that the target chose after them      (5)

A window may be a chain, several chains per sequence, or a tree. A path is a module of `backtrack`, or a configured object;
attention layers always use `kv_cache`. As many tokens enter the state as are emitted: the root enters, the new root does not.
If a run is cut at an end of sequence or at the budget, the cut tokens are not committed either.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from . import model as lm
from .accept import DraftTree, Emitted
from .accept.draft_tree import chain, unpadded
from .accept.drafts import trie
from .accept.emitted import accepted
from .accept.greedy import walk
from .accept.stop import cut
from .attention import KVState
from .attention.layer import AttentionLayer
from .backtrack import Accepted, Backtrack, Draft, kv_cache
from .backtrack.kv_cache import AttentionDraft
from .decode import Choose, Row, Sequences, Settings, most_likely, padded, prefill
from .errors import ParameterError, ShapeMismatch, Unsupported
from .lengths import first
from .model import Layer, Model, ModelState
from .records import Record
from .shapes import Array, Lengths, Logits, Mask, Parents, Residual, Tokens, WindowLogits
from .tree import PADDING

Path: TypeAlias = Backtrack[Any, Any]
Kept: TypeAlias = tuple[Any, ...]  # of each layer


@dataclass(frozen=True)
class Window(Record):
    """What one pass verifies: roots and drafts, one row per draft (see `Draft` for the other fields).

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    """

    tokens: Tokens
    lengths: Lengths | None = None
    sequence: Lengths | None = None
    parents: Parents | None = None

    def live(self) -> Mask:
        """Marks the real tokens of each row; padding nodes of a tree are not real."""
        rows, longest = self.tokens.shape
        real = first(np.full(rows, longest) if self.lengths is None else self.lengths, longest)
        return real if self.parents is None else real & (self.parents != PADDING)

    def sequences(self) -> Lengths:
        """The sequence that each row continues."""
        return np.arange(len(self.tokens)) if self.sequence is None else self.sequence

    def tree(self, r: int) -> DraftTree:
        """The real tokens of a row. Raises: NotTopological."""
        tokens = self.tokens[r, self.live()[r]]
        if self.parents is None:
            return chain(tokens[0], tokens[1:].tolist())
        return unpadded(tokens, self.parents[r, self.live()[r]])


@dataclass(frozen=True)
class Pending:
    """What each layer stores between verification and commit."""

    window: Window
    layers: tuple[Any, ...]


Drafter: TypeAlias = Callable[[Sequences], Window]
Judge: TypeAlias = Callable[[DraftTree, WindowLogits, int, Row, Row], Emitted]  # and b, prompt, output


def start(state: ModelState, model: Model, path: Path) -> Kept:
    """What each layer stores before the first window."""
    return tuple(kv_cache.start(s) if isinstance(s, KVState) else path.start(s) for s in state)


def refeed(kept: Kept, model: Model, path: Path) -> Lengths:
    """How many committed tokens of each sequence the next window must repeat: the longest lag of a layer."""
    return np.max([kv_cache.refeed(k) if isinstance(k, KVState) else path.refeed(k) for k in kept], axis=0)


def restore(kept: Kept, sequences: Sequences, model: Model, path: Path) -> ModelState:
    """The state of plain decoding now: the layers' restored states, advanced by the tokens that they lack.

    Raises: as the path's `restore`.
    """
    lag = refeed(kept, model, path)
    state = tuple(_restored(k, lag, block.layer, path) for k, block in zip(kept, model.blocks, strict=True))
    tokens, live = padded(behind(lag, sequences))
    return lm.scan(state, tokens, model, live)[1] if tokens.shape[1] else state


def _restored(kept: Any, lag: Lengths, layer: Layer, path: Path) -> Any:
    """What a layer held `lag` tokens ago; a cache is shortened to its length then."""
    if isinstance(layer, AttentionLayer):
        state = kv_cache.restore(kept, layer.params)
        return KVState(state.K, state.V, state.length - lag)
    return path.restore(kept, layer.mixer)


def behind(lag: Lengths, sequences: Sequences) -> tuple[Row, ...]:
    """The last `lag` committed tokens of each sequence."""
    committed = (sequences.committed(b) for b in range(len(sequences)))
    return tuple(row[len(row) - int(n) :] for n, row in zip(lag, committed, strict=True))


def feed(window: Window, lag: Lengths, sequences: Sequences) -> Window:
    """The window as the layers receive it: repeated tokens come before the root of every live row (1).

    Raises: Unsupported for a tree if tokens must be repeated.
    """
    if not lag[window.sequences()[window.live()[:, 0]]].any():
        return window
    if window.parents is not None:
        raise Unsupported("a path that feeds committed tokens again verifies rows, not trees; give each path as a row")
    again = behind(lag, sequences)
    rows = [
        again[b] + tuple(row[real].tolist()) if real[0] else ()
        for b, row, real in zip(window.sequences(), window.tokens, window.live(), strict=True)
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
        if isinstance(layer, AttentionLayer):
            attended = AttentionDraft(layer.inputs(u), fed.lengths, fed.sequence, fed.parents)
            y, pending = kv_cache.verify(kept[i], attended, layer.params, lag)
            return layer.output(y), pending
        inputs, gate = layer.inputs(u)
        y, pending = path.verify(kept[i], Draft(inputs, fed.lengths, fed.sequence, fed.parents), layer.mixer)
        return layer.output(y, gate), pending

    logits, layers = lm.through(fed.tokens, model, run)  # (2)
    index = lag[window.sequences(), None] + np.arange(window.tokens.shape[1])
    read = np.minimum(index, fed.tokens.shape[1] - 1)[:, :, None]
    return np.take_along_axis(logits, read, axis=1), Pending(window, layers)


def commit(pending: Pending, verdict: Accepted, model: Model, path: Path) -> Kept:
    """Root and accepted drafts enter every layer (4). Raises: AcceptanceError."""
    return tuple(
        kv_cache.commit(p, verdict, block.layer.params)
        if isinstance(block.layer, AttentionLayer)
        else path.commit(p, verdict, block.layer.mixer)
        for p, block in zip(pending.layers, model.blocks, strict=True)
    )


def check_roots(window: Window, sequences: Sequences) -> None:
    """Raise ShapeMismatch unless every live row starts with the root of its sequence, ParameterError for another sequence."""
    rows = len(window.tokens)
    if window.sequence is None and rows != len(sequences):
        raise ShapeMismatch(f"the window has {rows} rows for {len(sequences)} sequences; give the sequence of each row")
    owner, count = window.sequences(), len(sequences)
    for r in np.flatnonzero((owner < 0) | (owner >= count)).tolist():
        raise ParameterError(f"row {r} continues sequence {owner[r]}, but there are {count}; give 0 to {count - 1}")
    needed = sequences.roots()[owner]
    bad = np.flatnonzero((window.tokens[:, 0] != needed) & window.live()[:, 0])
    if bad.size:
        r = int(bad[0])
        raise ShapeMismatch(f"row {r} starts with token {window.tokens[r, 0]}, but the root of its sequence is {needed[r]}")


def follow(choose: Choose = most_likely) -> Judge:
    """A judge that changes no token: a draft is accepted if plain decoding would choose it.

    With `most_likely` this is greedy verification; with `Sampled` it is naive sampling with noise indexed by position.
    """

    def judge(tree: DraftTree, logits: WindowLogits, b: int, prompt: Row, output: Row) -> Emitted:
        chosen = [choose(logits[i], b, prompt, output + tree.drafted(i)) for i in range(len(tree))]
        return walk(tree, chosen)

    return judge


def runs(window: Window, logits: Logits, sequences: Sequences, settings: Settings, judge: Judge) -> list[tuple[int, Emitted]]:
    """For each sequence, the accepted row and its run, cut at the end (3).

    A finished sequence, or one without a live row, emits nothing.

    Raises: Unsupported for several trees of one sequence.
    """
    active, owner, begun = sequences.active(settings), window.sequences(), window.live()[:, 0]
    best = []
    for b, output in enumerate(sequences.emitted):
        rows = np.flatnonzero((owner == b) & begun)
        r, run = 0, Emitted((), ())
        if active[b] and rows.size:
            r, run = judged(window, logits, rows, b, sequences, judge)
            run, _ = cut(run, output, settings.stop, settings.budget - len(output))
        best.append((r, run))
    return best


def judged(window: Window, logits: Logits, rows: Array, b: int, sequences: Sequences, judge: Judge) -> tuple[int, Emitted]:
    """The accepted row and run of one sequence.

    Its rows are merged into one trie, because choosing the best of several results is biased (`drafts`). For greedy decoding
    this gives the longest accepted prefix, the lowest row on ties.

    Raises: Unsupported for several trees of one sequence.
    Source: Snakes and Ladders, section 3.1; for sampled verification the trie is ours.
    """
    prompt, output = sequences.prompts[b], sequences.emitted[b]
    if window.parents is not None:
        if len(rows) > 1:
            raise Unsupported(f"sequence {b} has {len(rows)} trees; merge them into one")
        r = int(rows[0])
        return r, judge(window.tree(r), logits[r, window.live()[r]], b, prompt, output)
    chains = [window.tree(int(r)).tokens for r in rows]
    merged = trie(chains[0][0], [tokens[1:] for tokens in chains])
    run = judge(merged.tree, np.stack([logits[rows[m], t] for m, t in merged.places()]), b, prompt, output)
    row = merged.row(run.path[-1])
    return int(rows[row]), Emitted(run.tokens, tuple(range(run.advanced)))


def verdict(best: Sequence[tuple[int, Emitted]], window: Window) -> Accepted:
    """The runs in the form that the backtracking paths take."""
    entered = accepted([run for _, run in best], window.tokens.shape[1])
    row = None if window.sequence is None else np.array([r for r, _ in best])
    return Accepted(entered.advanced, row, None if window.parents is None else entered.path)


def step(
    kept: Kept, sequences: Sequences, window: Window, model: Model, path: Path, settings: Settings, judge: Judge
) -> tuple[Sequences, Kept]:
    """One window of every sequence, (1) to (5).

    Raises: as `verify` and `commit`.
    """
    logits, pending = verify(kept, sequences, window, model, path)  # (1) (2)
    best = runs(window, logits, sequences, settings, judge)  # (3)
    kept = commit(pending, verdict(best, window), model, path)  # (4)
    return sequences.extended(tuple(run.tokens for _, run in best)), kept  # (5)


def decode(
    prompts: tuple[Row, ...], model: Model, settings: Settings, drafter: Drafter, path: Path, judge: Judge | None = None
) -> tuple[Sequences, ModelState]:
    """Decode prompts to the end. Same result as `decode.decode`, in fewer steps of the model.

    Raises: as `step`.
    """
    judge = follow() if judge is None else judge
    sequences, state = prefill(prompts, model)
    kept = start(state, model, path)
    while sequences.active(settings).any():
        sequences, kept = step(kept, sequences, drafter(sequences), model, path, settings, judge)
    return sequences, restore(kept, sequences, model, path)
