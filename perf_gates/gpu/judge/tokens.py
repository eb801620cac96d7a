"""The work between two windows, at the vocabularies of models: drafts, masks, acceptance, commits, cursors."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perf_gates.static.rows import oracle_of
from ssmspec_ref import tree
from ssmspec_ref.accept import UniformDice, stop
from ssmspec_ref.accept.draft_tree import DraftTree, unpadded
from ssmspec_ref.accept.emitted import Emitted
from ssmspec_ref.accept.sampled import LAWS
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.shapes import Array

from .call import Call, Check, Plan, launcher, trees

VOCABULARY = {"mamba2-2.7b": 50288, "qwen3.5-4b": 151936}
GRID = 2**24


def checks(plan: Plan) -> Iterator[Check]:
    for b in plan.batches:
        for t in (*plan.windows, *plan.nodes):
            for model, size in ({"tiny": 50} if plan.tiny else VOCABULARY).items():
                yield Check("accept_greedy", model, f"T={t}", b, partial(accept_greedy, b=b, t=t, size=size))
            yield Check("tree_mask", "any", f"T={t}", b, partial(masks, b=b, t=t))
            yield Check("commit_tokens", "any", f"T={t}", b, partial(commit, b=b, t=t))
        yield Check("ngram_drafts", "any", "PNG(6,2)", b, partial(ngrams, b=b, l=90 if plan.tiny else 2048))
        for t in {*plan.nodes[:1], *plan.windows[-2:]} if b <= 16 else ():
            for model, size in ({"tiny": 50} if plan.tiny else VOCABULARY).items():
                for law in LAWS:
                    run = partial(accept_sampled, b=b, t=t, size=size, law=law)
                    yield Check("accept_sampled", model, f"T={t} {law}", b, run)


def masks(call: Call, b: int, t: int) -> float:
    parents = trees(call, b, t)
    given = call.ints(parents, torch.int64)
    ancestors, depths = call.ints(np.ones((b, t, t)), torch.bool), call.ints(np.full((b, t), 7), torch.int64)
    with call.keeping({}, given=given):
        launcher("tree_mask")(given, ancestors=ancestors, depths=depths)
    assert np.array_equal(ancestors.cpu().numpy(), oracle_of("tree_mask")(parents)), "other ancestors"
    assert np.array_equal(depths.cpu().numpy(), tree.depths(parents)), "other depths"
    return 0.0


def ngrams(call: Call, b: int, l: int) -> float:
    """Histories of few tokens, of many, and of every length; rows of the table if they give too few drafts."""
    size = 50
    slots, length = call.slots(b), call.rng.integers(1, l + 1, b + 3)
    held = call.rng.integers(0, size, (b + 3, l)) // call.rng.integers(1, size, (b + 3, 1))
    table = call.rng.integers(0, size, (size, 2, 6))
    given = [call.ints(x, torch.int64) for x in (held, length, table)]
    with call.keeping({}, sequences=given[0], length=given[1], table=given[2]):
        y, lengths = launcher("ngram_drafts")(*given[:2], 6, 2, table=given[2], slots=slots)
    for row, slot in enumerate(slots.tolist()):
        history = held[slot, : length[slot]] if slot >= 0 else None
        drafts = [] if history is None else oracle_of("ngram_drafts")(history, 2, 6, table).tolist()
        root, pad = 0 if history is None else int(history[-1]), 2 - len(drafts)
        assert y[row].tolist() == [[root, *d] for d in [*drafts, *[[0] * 6] * pad]], f"row {row} has other drafts"
        assert lengths[row].tolist() == [7] * len(drafts) + [1] * pad, f"row {row} has drafts of other lengths"
    return 0.0


def blank(call: Call, b: int, t: int) -> Any:
    """Memory for a run, filled with a marker."""
    shapes = (b, t), (b, t), (b,)
    run = (call.ints(np.full(shape, -77), torch.int64) for shape in shapes)
    return launcher("accept_greedy", "Emitted")(*run, call.ints(np.ones(b), torch.bool))


def same_run(out: Any, row: int, run: Emitted, budget: int, eos: tuple[int, ...]) -> None:
    """Asserts that a row holds a run, cut, padded with -1."""
    cut, finish = stop.cut(run, (), stop.Stop(frozenset(eos)), budget)
    count, t = len(cut.tokens), out.tokens.shape[1]
    found = out.tokens[row].tolist(), out.path[row].tolist(), int(out.advanced[row]), bool(out.ended[row])
    pad = [-1] * (t - count)
    want = [*map(int, cut.tokens), *pad], [*map(int, cut.path), *pad], count, finish is not None
    assert found == want, f"row {row} emitted {found}, but the reference emitted {want}"


def rows_of(call: Call, b: int, t: int, size: int) -> tuple[Array, Array, Tensor, Array]:
    """Trees of tokens, slots, and budgets by slot."""
    parents, slots = trees(call, b, t), call.slots(b)
    budget = call.rng.integers(1, t + 2, b + 3)
    return call.rng.integers(0, size, (b, t)), parents, slots, budget


def accept_greedy(call: Call, b: int, t: int, size: int) -> float:
    """Runs of all rows; on two nodes in three the target chooses the token of a child."""
    tokens, parents, slots, budget = rows_of(call, b, t, size)
    choice = call.rng.integers(0, size, (b, t))
    for row, above in enumerate(parents):
        for i, parent in enumerate(above):
            if parent >= 0 and call.rng.random() < 0.67:
                choice[row, parent] = tokens[row, i]
    eos, out = (int(choice[0, 0]), size - 1), blank(call, b, t)
    given = [call.ints(x, torch.int64) for x in (tokens, parents, choice, budget)]
    watched = dict(zip(("tokens", "parents", "choice", "budget"), given, strict=True))
    live = slice(0, b - 1 if b > 1 else 1)
    owned = dict.fromkeys(("y_tokens", "y_path", "y_advanced", "y_ended"), live)
    with call.keeping(owned, **watched, **{f"y_{name}": x for name, x in out._asdict().items()}):
        launcher("accept_greedy")(*given, eos=call.ints(eos, torch.int64), slots=slots, out=out)
    for row in range(live.stop):
        whole = unpadded(tokens[row], parents[row])
        same_run(
            out, row, oracle_of("accept_greedy")(whole, choice[row, : len(whole)].tolist()), int(budget[int(slots[row])]), eos
        )
    return 0.0


def on_grid(weights: Tensor) -> Tensor:
    """Distributions over the last axis, multiples of 2^-24 that sum to one exactly, in fp32."""
    counts = (weights.double() / weights.double().sum(dim=-1, keepdim=True) * GRID).floor()
    most = counts.argmax(dim=-1, keepdim=True)
    missing = GRID - counts.sum(dim=-1, keepdim=True)
    return (counts.scatter_add(-1, most, missing) / GRID).float()


def accept_sampled(call: Call, b: int, t: int, size: int, law: str) -> float:
    """Peaked distributions over a whole vocabulary, drafts drawn from q, random noise: two rows against the exact rule."""
    tokens, parents, slots, budget = rows_of(call, b, t, size)
    random = lambda: torch.rand((b, t, size), generator=call.drawn, device=call.device)  # noqa: E731
    q = on_grid(random() ** 200 + 1e-9)
    p = on_grid(q * (0.5 + random()))
    for row, above in enumerate(parents):
        for i, parent in enumerate(above):
            if parent >= 0:
                tokens[row, i] = int(torch.multinomial(q[row, parent], 1, generator=call.drawn))
    coins, picks = (call.rng.integers(0, GRID, (2, b, t)) / GRID).astype(np.float32)
    out, eos = blank(call, b, t), (size - 1,)
    given = {"q": q} if law in ("iid", "without_replacement") else {}
    given |= {} if law == "naive" else {"coins": call.ints(coins, torch.float32)}
    ints = [call.ints(x, torch.int64) for x in (tokens, parents)]
    fixed = [call.ints(picks, torch.float32), call.ints(budget, torch.int64)]
    launcher("accept_sampled")(*ints, p, *fixed, law=law, **given, eos=call.ints(eos, torch.int64), slots=slots, out=out)
    for row in sorted({0, max(0, b - 2)}):
        whole = unpadded(tokens[row], parents[row])
        of_p, of_q = (list(x[row, : len(whole)].double().cpu().numpy()) for x in (p, q))
        run = sampled(whole, law, of_p, of_q, coins[row], picks[row])
        same_run(out, row, run, int(budget[int(slots[row])]), eos)
    return 0.0


def sampled(whole: DraftTree, law: str, p: Any, q: Any, coins: Array, picks: Array) -> Emitted:
    """The reference's run in float64; no random decision is within a rounding of its threshold."""
    dice = UniformDice([float(u) for u in coins], [float(u) for u in picks])
    p, q = ([row.tolist() for row in rows] for rows in (p, q))
    run: Emitted = oracle_of("accept_sampled")(whole, law, p, q, dice)
    return run


def commit(call: Call, b: int, t: int) -> float:
    """Runs of all lengths, entered in place; then the cursors of a ring and the halves of a cache."""
    slots, pool, room = call.slots(b), b + 3, 3 * t + 5
    advanced = call.rng.integers(0, t + 1, b)
    tokens = np.where(np.arange(t) < advanced[:, None], call.rng.integers(0, 999, (b, t)), -1)
    ended = call.rng.random(b) < 0.4
    state: dict[str, Any] = {name: call.rng.integers(t, t + 5, pool) for name in ("length", "root", "cursor", "budget")}
    state |= {"ended": call.rng.random(pool) < 0.3, "sequences": call.rng.integers(0, 999, (pool, room))}
    held = {name: call.ints(x, torch.bool if x.dtype == bool else torch.int64) for name, x in state.items()}
    run = blank(call, b, t)._replace(
        tokens=call.ints(tokens, torch.int64), advanced=call.ints(advanced, torch.int64), ended=call.ints(ended, torch.bool)
    )
    launcher("commit_tokens")(
        run, held["sequences"], held["length"], slots=slots, **{n: held[n] for n in (*list(state)[1:5],)}
    )
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            new, at = tokens[row, : advanced[row]], state["length"][slot]
            state["sequences"][slot, at : at + len(new)] = new
            for name, sign in (("length", 1), ("cursor", 1), ("budget", -1)):
                state[name][slot] += sign * len(new)
            state["root"][slot] = new[-1] if len(new) else state["root"][slot]
            state["ended"][slot] |= ended[row]
    for name, x in held.items():
        assert np.array_equal(x.cpu().numpy(), state[name]), f"{name} differs from the list that the reference keeps"
    _cursors(call, slots, advanced, t)
    return 0.0


def _cursors(call: Call, slots: Tensor, advanced: Array, t: int) -> None:
    pool, capacity = len(slots) + 3, 2 * t + 3
    origin, held, half = (
        call.rng.integers(0, capacity, pool),
        call.rng.integers(0, t + 4, pool),
        call.rng.integers(0, 2, pool),
    )
    found = [call.ints(x) for x in (origin, held, half)]
    launcher("cursors", "commit_window")(*found[:2], call.ints(advanced), capacity=capacity, window=t, slots=slots)
    launcher("double_buffer", "commit_halves")(found[2], rows=len(slots), slots=slots)
    due = ReplayBuffer(capacity, t).due(held)
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            origin[slot] = (origin[slot] + held[slot]) % capacity if due[slot] else origin[slot]
            held[slot], half[slot] = advanced[row] + (0 if due[slot] else held[slot]), 1 - half[slot]
    for name, x, want in zip(("origin", "held", "half"), found, (origin, held, half), strict=True):
        assert np.array_equal(x.cpu().numpy(), want), f"{name} differs from the rule of the ring"
