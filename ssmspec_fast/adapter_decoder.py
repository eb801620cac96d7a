"""The methods as the suite sees them: what lies between a layer's projections, decoded window after window by a `Decoder`.

The decoder gets a model of one layer whose projections hand on what the suite gives (`adapter_layer`). Everything between is
the engine's: feed, recur, commit, settle, fork, release. Sequences lie in slots out of order, a row of padding in every
batch; pools begin as NaN.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.contract import Capability, Limits, NumericContract, Subject
from ssmspec_ref.shapes import Array

from . import adapter_methods
from .adapter_layer import LONGEST, Tokens, layer_of, model_of, parts
from .adapter_methods import Make
from .adapter_tensors import apart
from .decoder import Decoder
from .handover import Held
from .methods.activation_replay import ActivationReplay
from .methods.joint import Joint
from .methods.replay_buffer import ReplayBuffer
from .methods.snapshots import Snapshots
from .methods.tree import Tree
from .operations import Emitted, Operations
from .sequences import new_sequences
from .state import Pools, tensors
from .window import Verdict, Window


class Decoding:
    """The sequences of a batch under a method; `make` is given the tokens of the longest window, which is the first.

    With two drafts, every sequence has a second row, of the same root, that is not accepted.
    """

    def __init__(self, make: Make, operations: Operations, device: str, drafts: int, mixer: Any, state: Any) -> None:
        self.make, self.operations, self.device, self.drafts = make, operations, device, drafts
        self.mixer, self.begin, self.rows = mixer, state, len(state.M)
        self.tokens = Tokens(device)
        self.slots = apart(self.rows, device)
        self.decoder: Decoder | None = None

    def start(self, inputs: Any, trees: bool) -> Decoder:
        """The decoder, once the first window says what its sizes are."""
        z = getattr(inputs.gates, "z", None)
        layer, S = layer_of(self.mixer, z is not None, self.tokens), self.begin.S
        self.shape = S.shape[1:2] if S.ndim == 3 else (S.shape[1], S.shape[3 if hasattr(self.mixer, "key_heads") else 2])
        outputs = int(torch.Size(self.shape).numel())
        t, model = inputs.pre.shape[1], model_of(layer, outputs, self.device)
        made = self.make(t)
        method = ActivationReplay() if isinstance(made, Tree) and not trees else made  # a chain is no tree here
        decoder = Decoder(model, method, self.operations, slots=2 * self.rows, cache=LONGEST, window=t)
        for x in tensors([decoder.pools.layers, decoder.pools.kept]):
            if x.is_floating_point():
                x.fill_(float("nan"))
        self.sequences = new_sequences(2 * self.rows, LONGEST + t, (), (), self.device)
        for row, slot in enumerate(self.slots.tolist()):
            pair = (torch.tensor(x[row], device=self.device).float() for x in (self.begin.M, self.begin.S))
            decoder.restore(slot, Held((tuple(pair),), 0))  # type: ignore[arg-type]
            self.sequences.add(slot, [0], LONGEST, row)
        return decoder

    @torch.no_grad()
    def verify(self, inputs: Any, parents: Array | None = None) -> Array:
        """One row for every draft of every sequence, and rows of padding behind them."""
        self.decoder = self.decoder or self.start(inputs, parents is not None)
        self.ids = self.tokens.add(*parts(inputs))
        self.sequences.tokens[self.slots, self.sequences.length[self.slots] - 1] = self.ids[:, 0]  # the root
        window = self.window(None if parents is None else torch.tensor(parents, device=self.device))
        self.before = copy.deepcopy(self.decoder.pools) if isinstance(self.decoder.method, Joint) else None
        self.feed = self.decoder.feed(window, self.sequences)
        y = self.decoder.verify(self.feed)[self.standing()[:-1]]
        return y.view(*y.shape[:2], *self.shape).double().cpu().numpy()

    def window(self, parents: Tensor | None) -> Window:
        other = torch.cat([self.ids[:, :1], self.ids[:, 1:].flip(1)], dim=1)
        number, first = torch.arange(self.drafts, device=self.device), self.standing()[:-1, None] % self.drafts
        rows = torch.where((first == number)[..., None], self.ids[:, None], other[:, None])
        padding = torch.zeros_like(rows[:1])
        tokens = torch.cat([rows, padding]).flatten(0, 1)
        slots = torch.cat([self.slots, self.slots.new_tensor([-1])]).repeat_interleave(self.drafts)
        if parents is not None:
            parents = torch.cat([parents, parents[:1]])
        return Window(tokens, slots, None, parents, self.drafts)

    def standing(self) -> Tensor:
        """The row of each sequence that is accepted: now the first of its drafts, now the last."""
        sequence = torch.arange(self.rows + 1, device=self.device)
        return sequence * self.drafts + sequence % self.drafts

    @torch.no_grad()
    def commit(self, advanced: Array, path: Array) -> None:
        """Rows of which nothing is accepted took no part: an engine leaves them out, and only then joint attainment does."""
        assert self.decoder is not None
        count, nodes = torch.tensor(advanced, device=self.device), torch.tensor(path, device=self.device)
        taken = torch.where(nodes >= 0, torch.gather(self.ids, 1, nodes.clamp_min(0)), -1)
        emitted = torch.cat([taken[:, 1:], torch.full_like(taken[:, :1], -1)], dim=1)
        emitted = torch.where((emitted < 0) & (nodes >= 0), 0, emitted)  # the next root, which nobody knows yet
        run = Emitted(*(behind(x) for x in (emitted, nodes, count, torch.zeros_like(count, dtype=torch.bool))))
        verdict = Verdict(run, self.standing(), torch.cat([self.slots, self.slots.new_tensor([-1])]))
        self.decoder.commit(self.feed, verdict)
        self.sequences.commit(verdict)
        if self.before is not None:
            idle = self.slots[count == 0]
            pairs = zip(owned(self.decoder.pools), owned(self.before), strict=True)
            for new, old in pairs:
                new[idle] = old[idle]

    @torch.no_grad()
    def state(self) -> tuple[Array, Array]:
        """Of a fork of every sequence, which is released again."""
        assert self.decoder is not None
        found = []
        for slot in self.slots.tolist():
            self.decoder.fork(slot, slot + 1, self.sequences)
            found.append(self.decoder.snapshot(slot + 1, self.sequences).layers[0])
            self.decoder.release(slot + 1)
        M, S = (torch.stack(x).double().cpu().numpy() for x in zip(*found, strict=True))
        return M, S


def owned(pools: Pools) -> Iterator[Tensor]:
    """What has an entry for each slot."""
    return tensors([pools.layers, pools.length, pools.kept])


def behind(x: Tensor) -> Tensor:
    """What the padding sequence emits, behind the others: nothing."""
    return torch.cat([x, torch.full_like(x[:1], -1 if x.dim() == 2 else 0)])


class Bare:
    """A recurrence alone: its convolution hands every input on as it is."""

    def __init__(self, decoding: Callable[..., Decoding], S: Array, params: Any) -> None:
        self.decoding, self.S, self.params = decoding, S, params
        self.inner: Decoding | None = None

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        names = ("x", "B", "C") if hasattr(window, "x") else ("q", "k", "v")
        flat = [torch.tensor(getattr(window, name)).flatten(2) for name in names]
        gates = SimpleNamespace(**{name: a for name, a in vars(window).items() if name not in names})
        inputs = SimpleNamespace(pre=torch.cat(flat, dim=2).numpy(), gates=gates)
        if self.inner is None:
            self.inner = self.decoding(*self.mixer(window, inputs.pre.shape[2]))
        return self.inner.verify(inputs, parents)

    def mixer(self, window: Any, channels: int) -> tuple[Any, Any]:
        """A layer with the filter (0, 1), and its state."""
        last = torch.tensor([0.0, 1.0]).expand(channels, 2).numpy()
        made = SimpleNamespace(params=self.params, conv=SimpleNamespace(weight=last, bias=None, activation=False))
        state = SimpleNamespace(M=torch.zeros(len(self.S), channels, 2).numpy(), S=self.S)
        if hasattr(window, "x"):
            made.channels, (made.groups, made.state) = window.x.shape[3], window.B.shape[2:]
            made.x_groups = made.B_groups = None
        else:
            made.key_heads, made.key_channels = window.k.shape[2:]
            made.value_heads, made.value_channels = window.v.shape[2:]
        return made, state

    def commit(self, advanced: Array, path: Array) -> None:
        assert self.inner is not None
        self.inner.commit(advanced, path)

    def state(self) -> Array:
        return self.S if self.inner is None else self.inner.state()[1]


KINDS: dict[str, tuple[str, ...]] = {"kind": ("mamba2", "mamba1", "delta"), "inner_norm": ("off",)}
NOT_THERE = "the engine has neither Kimi Delta Attention nor norms inside Mamba-1"
STEPS: dict[str, tuple[str, ...]] = {"accept": ("all", "root")}
TREES: dict[str, tuple[str, ...]] = {"between": ("trees",)}
NO_CHAINS = f"{NOT_THERE}; its tree takes trees only, chains are activation replay's"


def subjects(device: str, operations: Operations, contract: NumericContract) -> list[Subject]:
    """Every method on chains, the tree on trees, and each recurrence alone under the method that has the operation's name."""

    def decoding(make: Make, drafts: int = 1) -> Callable[..., Decoding]:
        return partial(Decoding, make, operations, device, drafts)

    limits, absent = Limits(options=KINDS, reason=NOT_THERE), {"": "another part of the engine"}
    one = Limits(options=KINDS | STEPS, sizes={"t": (1, 1)}, reason="plain decoding takes single tokens, none is rejected")
    plain = Capability(decoding(adapter_methods.plain), contract, one)
    made = [Subject("plain", {"speculate.chain": plain}, {"speculate": "windows of one token", **absent})]
    for name, (make, drafts) in adapter_methods.CHAINS.items():
        why = {"speculate": "chains only; trees are the tree's", **absent}
        made.append(Subject(name, {"speculate.chain": Capability(decoding(make, drafts), contract, limits)}, why))
    tree = Capability(decoding(adapter_methods.tree), contract, Limits(options=KINDS | TREES, reason=NO_CHAINS))
    made.append(Subject("tree", {"speculate.tree": tree}, {"speculate": "a chain is activation replay's", **absent}))
    alone: dict[str, Make] = {
        "verify_snapshots": lambda t: Snapshots(),
        "verify_replay": adapter_methods.tree,
        "buffered_verify": lambda t: ReplayBuffer(),
        "buffered_step": lambda t: ReplayBuffer(5),
    }
    by_head = Limits(options={"gate": ("head",)} | TREES, reason=NO_CHAINS)
    for kind in ("ssd", "delta"):
        capabilities = {
            f"{kind}.{operation}": Capability(partial(Bare, decoding(make)), contract, by_head)
            for operation, make in alone.items()
        }
        made.append(Subject(f"{kind} alone", capabilities, absent))
    return made
