"""Windows one after the other, at the shapes of models: through a ring and its flushes, and with the replay of the last."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perf_gates.static.rows import taken
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.shapes import Array

from .call import Call, accepted, launcher, masks, poisoned, within
from .layer import Family, Layer, Tokens


@dataclass
class Beside:
    """One sampled row: its checkpoint, and the tokens held since."""

    layer: Layer
    kernel: str
    S: Array
    held: Tokens | None = None
    count: int = 0

    def read(self, tokens: Tokens) -> eb.Approx:
        """The outputs of a window after the held tokens."""
        whole = tokens if self.held is None else self.held.before(tokens)
        y: eb.Approx = self.layer.bound(self.kernel, self.S, whole, order=self.layer.of.reading)[0]
        return y[:, self.count :]

    def flushed(self, found: Array) -> float:
        """The used share of the bound of the checkpoint after the held tokens, from which the row goes on."""
        used = 0.0
        if self.held is None:
            assert np.array_equal(found, self.S), "S changed, although the ring was empty"
        else:
            used = self.layer.left(found, self.layer.bound(self.kernel, self.S, self.held, order=self.layer.of.reading)[1])
        self.S, self.held, self.count = found, None, 0
        return used

    def take(self, tokens: Tokens, count: int) -> None:
        if count:
            cut = tokens.prefix(count)
            self.held, self.count = cut if self.held is None else self.held.before(cut), self.count + count


def copied(layer: Layer, ring: Any, tokens: dict[str, Tensor], at: tuple[Tensor, Tensor]) -> None:
    """Asserts that what a ring keeps as it was projected has its bits, in all rows; and the products of a convolution."""
    given = {name: x for name, x in tokens.items() if name in vars(ring) and vars(ring)[name].dtype == x.dtype}
    if layer.of.exact:
        given["u"] = tokens["B"].float() * tokens["x"].float()
    for name, x in given.items():
        assert torch.equal(vars(ring)[name][at], x[: layer.live]), f"an entry of {name} is not its token"


def windows(call: Call, of: Family, sizes: Any, b: int, by: str, t: int, capacity: int, **how: Any) -> float:
    """Consecutive windows, through flushes, each with a random number of accepted tokens, then a flush of all rows by hand;
    or single tokens, all of them accepted."""
    single = "output_only" in how
    layer = Layer(call, of, sizes, b, **{name: how.pop(name) for name in ("u",) if name in how})
    origin, held = call.rng.integers(0, capacity, len(layer.S)), np.zeros(len(layer.S), dtype=int)
    ring, used, slots = layer.record(by, "ring", capacity, origin=origin, held=held), 0.0, layer.slots.cpu().numpy()
    rows = [Beside(layer, by, S[None]) for S in layer.state()]
    how |= {} if single else {"window": t}
    cursors = {"capacity": capacity, "slots": layer.slots} | ({"rows": b} if single else {"window": t})
    for _ in range(capacity + 3 if single else 3 + -(-3 * capacity // (2 * t))):
        tokens, own = layer.tokens(t), slots[: layer.live]
        took = np.ones(b, dtype=int) if single else call.rng.integers(0, t + 1, b)
        due = held + 1 == capacity if single else (held > 0) & ReplayBuffer(capacity, t).due(held)
        places = (origin[own, None] + held[own, None] + np.arange(t)) % capacity
        at = torch.as_tensor(own[:, None], device=layer.S.device), torch.as_tensor(places, device=layer.S.device)
        owned = {"S": layer.own} | {f"ring.{n}": at for n, x in vars(ring).items() if x.is_floating_point()}
        out = layer.run(by, tokens, owned, ring=ring, **how)["out"]
        window, states = layer.window(tokens), layer.state()
        if not single:
            copied(layer, ring, tokens, at)
        for i, one in enumerate(rows):
            used = max(used, within("y", layer.outputs(out)[i : i + 1], one.read(window.row(i))))
            if single:
                one.take(window.row(i), 1)
            if due[layer.at[i]]:
                used = max(used, one.flushed(states[i : i + 1]))
            assert np.array_equal(states[i : i + 1], one.S), "S changed in a row that does not flush"
            if not single:
                one.take(window.row(i), int(took[layer.rows[i]]))
        moved = () if single else (call.ints(took),)
        launcher("cursors", "commit_step" if single else "commit_window")(ring.origin, ring.held, *moved, **cursors)
        full = due[own]
        if not single:
            origin[own] = np.where(full, origin[own] + held[own], origin[own]) % capacity
        held[own] = np.where(full, 0, held[own]) + np.where(full & single, 0, took[: layer.live])
        for name, x in (("origin", origin), ("held", held)):
            found = getattr(ring, name)[torch.as_tensor(layer.at, device=layer.S.device)].tolist()
            assert found == x[layer.at].tolist(), f"{name} differs from the rule of the ring"
    if single:
        return used
    run = launcher(f"{of.name}_flush")
    run(**taken(run, {"S": layer.S, "ring": ring, "slots": layer.slots, "rows": b}, layer.weights, layer.options))
    return max(used, *(one.flushed(S[None]) for one, S in zip(rows, layer.state(), strict=True)), 0.0)


def replay(
    call: Call, of: Family, sizes: Any, b: int, by: str, t: int, branching: bool = False, windows: int = 3, io: Any = "bf16"
) -> float:
    """Consecutive windows or trees, each after the replay of the accepted tokens of the previous one."""
    layer = Layer(call, of, sizes, b, io=io)
    cache = layer.record(by, "cache", 2 * t, half=call.rng.integers(0, 2, len(layer.S)))
    path, advanced, used = np.full((b, t), -1), np.zeros(b, dtype=int), 0.0
    last: Tokens | None = None
    for _ in range(windows):
        tokens, start = layer.tokens(t), layer.state()
        mask = masks(call, b, t, branching)
        sees = poisoned(call, tokens, mask)
        more: dict[str, Any] = {"path": call.ints(path), "ancestors": sees} if branching else {}
        out = layer.run(by, tokens, {"S": layer.own}, cache=cache, advanced=call.ints(advanced), **more)["out"]
        found, window = layer.state(), layer.window(tokens)
        for i, b_i in enumerate(layer.rows):
            S = eb.exact(start[i : i + 1], layer.contract())
            if advanced[b_i] and last is not None:
                took = last.row(i).along(path[b_i : b_i + 1, : advanced[b_i]])
                _, S = layer.bound(by, S, took, order="output_only")
                used = max(used, within("S", found[i : i + 1], S))
            else:
                assert np.array_equal(found[i], start[i]), "a state changed although nothing was accepted"
            y = layer.bound("ssd_tree_scan", S, window.row(i), mask[b_i : b_i + 1], order="output_only")
            used = max(used, within("y", layer.outputs(out)[i : i + 1], y))
        launcher("double_buffer", "commit_halves")(cache.half, rows=b, slots=layer.slots)
        last, (path, advanced) = window, accepted(call, mask)
    return used
