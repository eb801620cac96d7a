"""The methods for the suite: everything between a layer's projections, decoded window after window by a `Decoder`.

The decoder gets a model of one layer whose projections return the suite's values (`given`). Everything between is the
engine's: feed, recur, commit, settle, fork, release. Sequences are in slots out of order, with a row of padding in every
batch; pools are filled with NaN at first.
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

from ..engine.decoder import Decoder
from ..engine.sequences import new_sequences
from ..engine.state import Pools, SequenceState, tensors
from ..engine.window import Verdict, Window
from ..methods.activation_replay import ActivationReplay
from ..methods.joint import Joint
from ..methods.replay_buffer import ReplayBuffer
from ..methods.snapshots import Snapshots
from ..methods.tree import Tree
from ..operations import Emitted, Operations
from . import methods as adapter_methods
from .given import GIVEN
from .given.layer import LONGEST, model_of
from .given.tokens import Tokens
from .methods import Make
from .poison import poison
from .tensors import apart, exact


class Decoding:
    """The sequences of a batch under a method; `make` receives the length of the longest window, which is the first.

    With two drafts, every sequence has a second row with the same root, which is not accepted.
    """

    def __init__(self, make: Make, operations: Operations, device: str, drafts: int, mixer: Any, state: Any) -> None:
        self.make, self.operations, self.device, self.drafts = make, operations, device, drafts
        self.mixer, self.initial, self.rows = mixer, state, len(state.M)
        self.tokens = Tokens(device)
        self.slots, self.capacity = apart(self.rows, device), 2 * self.rows
        self.decoder: Decoder | None = None

    def start(self, inputs: Any, trees: bool) -> Decoder:
        """Builds the decoder, once the first window gives its sizes."""
        floats = partial(exact, device=self.device)
        layer = GIVEN[self.mixer.kind].handing(self.mixer, self.tokens, floats, inputs.gates)
        self.shape = torch.Size(layer.config.output_shape)
        outputs = self.shape.numel()
        t, model = inputs.pre.shape[1], model_of(layer, outputs, self.device)
        made = self.make(t)
        method = ActivationReplay() if isinstance(made, Tree) and not trees else made  # here a chain is not a tree
        decoder = Decoder(model, method, self.operations, slots=self.capacity, cache=LONGEST, window=t)
        for x in tensors([decoder.pools.layers, decoder.pools.kept]):
            if x.is_floating_point():
                x.fill_(float("nan"))
        self.sequences = new_sequences(self.capacity, LONGEST + t, (), (), self.device)
        for row, slot in enumerate(self.slots.tolist()):
            pair = (torch.tensor(x[row], device=self.device).float() for x in (self.initial.M, self.initial.S))
            decoder.restore(slot, SequenceState((tuple(pair),), 0))  # type: ignore[arg-type]
            self.sequences.add(slot, [0], LONGEST, row)
        return decoder

    @torch.no_grad()
    def verify(self, inputs: Any, parents: Array | None = None) -> Array:
        """One row for every draft of every sequence, followed by rows of padding."""
        self.decoder = self.decoder or self.start(inputs, parents is not None)
        self.ids = self.tokens.add(inputs.pre, *GIVEN[self.mixer.kind].passing(inputs.gates))
        self.sequences.tokens[self.slots, self.sequences.length[self.slots] - 1] = self.ids[:, 0]  # the root
        window = self.window(None if parents is None else torch.tensor(parents, device=self.device))
        self.before = copy.deepcopy(self.decoder.pools) if isinstance(self.decoder.method, Joint) else None
        self.fed = self.decoder.feed(window, self.sequences)
        y = self.decoder.verify(self.fed)[self.standing()[:-1]]
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
        """The accepted row of each sequence: alternately the first and the last of its drafts."""
        sequence = torch.arange(self.rows + 1, device=self.device)
        return sequence * self.drafts + sequence % self.drafts

    @torch.no_grad()
    def commit(self, advanced: Array, path: Array) -> None:
        """Skips rows of which nothing is accepted, as an engine does; joint attainment relies on it."""
        assert self.decoder is not None
        count, nodes = torch.tensor(advanced, device=self.device), torch.tensor(path, device=self.device)
        taken = torch.where(nodes >= 0, torch.gather(self.ids, 1, nodes.clamp_min(0)), -1)
        emitted = torch.cat([taken[:, 1:], torch.full_like(taken[:, :1], -1)], dim=1)
        emitted = torch.where((emitted < 0) & (nodes >= 0), 0, emitted)  # the next root, which is not known yet
        run = Emitted(*(with_padding(x) for x in (emitted, nodes, count, torch.zeros_like(count, dtype=torch.bool))))
        verdict = Verdict(run, self.standing(), torch.cat([self.slots, self.slots.new_tensor([-1])]))
        self.decoder.commit(self.fed, verdict)
        self.sequences.commit(verdict)
        if self.before is not None:
            idle = self.slots[count == 0]
            pairs = zip(owned(self.decoder.pools), owned(self.before), strict=True)
            for new, old in pairs:
                new[idle] = old[idle]

    def poison(self) -> None:
        """NaN in all memory that no sequence needs."""
        if self.decoder is not None:
            live = self.slots.tolist()
            poison(self.decoder, set(range(self.decoder.slots)) - set(live), live)

    @torch.no_grad()
    def state(self) -> tuple[Array, Array]:
        """The state of a fork of every sequence, which is released again."""
        assert self.decoder is not None
        found = []
        for slot in self.slots.tolist():
            self.decoder.fork(slot, slot + 1, self.sequences)
            found.append(self.decoder.snapshot(slot + 1, self.sequences).layers[0])
            self.decoder.release(slot + 1)
        M, S = (torch.stack(x).double().cpu().numpy() for x in zip(*found, strict=True))
        return M, S


def owned(pools: Pools) -> Iterator[Tensor]:
    """The tensors with an entry for each slot."""
    return tensors([pools.layers, pools.length, pools.kept.by_slot()])


def with_padding(x: Tensor) -> Tensor:
    """Appends the padding sequence, which emits nothing."""
    return torch.cat([x, torch.full_like(x[:1], -1 if x.dim() == 2 else 0)])


class Bare:
    """A recurrence alone: its convolution passes every input on unchanged."""

    def __init__(self, bare: Callable[..., Any], decoding: Callable[..., Decoding], S: Array, params: Any) -> None:
        self.bare, self.decoding, self.S, self.params = bare, decoding, S, params
        self.inner: Decoding | None = None

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        mixer, names = self.bare(window, self.params)
        nothing = torch.empty((*next(iter(vars(window).values())).shape[:2], 0))
        pre = torch.cat([nothing, *(torch.tensor(getattr(window, name)).flatten(2) for name in names)], dim=2).numpy()
        gates = SimpleNamespace(**{name: a for name, a in vars(window).items() if name not in names})
        if self.inner is None:
            self.inner = self.decoding(*self.layer(mixer, pre.shape[2]))
        return self.inner.verify(SimpleNamespace(pre=pre, gates=gates), parents)

    def layer(self, mixer: Any, channels: int) -> tuple[Any, Any]:
        """The mixer with the filter (0, 1), and its state."""
        last = torch.tensor([0.0, 1.0]).expand(channels, 2).numpy()
        mixer.conv = SimpleNamespace(weight=last, bias=None, activation=False)
        return mixer, SimpleNamespace(M=torch.zeros(len(self.S), channels, 2).numpy(), S=self.S)

    def commit(self, advanced: Array, path: Array) -> None:
        assert self.inner is not None
        self.inner.commit(advanced, path)

    def poison(self) -> None:
        if self.inner is not None:
            self.inner.poison()

    def state(self) -> Array:
        return self.S if self.inner is None else self.inner.state()[1]


NOT_THERE = "the engine has no norms inside Mamba-1"
STEPS: dict[str, tuple[str, ...]] = {"accept": ("all", "root")}
TREES: dict[str, tuple[str, ...]] = {"between": ("trees",)}
NO_CHAINS = f"{NOT_THERE}; its tree takes trees only, chains use activation replay"


def subjects(device: str, operations: Operations, contract: NumericContract) -> list[Subject]:
    """Every method on chains, the tree on trees, and each recurrence alone under the method with the operation's name."""

    def decoding(make: Make, drafts: int = 1) -> Callable[..., Decoding]:
        return partial(Decoding, make, operations, device, drafts)

    kinds = {"kind": tuple(name for kind in GIVEN.values() for name in kind.models), "inner_norm": ("off",)}
    limits, absent = Limits(options=kinds, reason=NOT_THERE), {"": "another part of the engine"}
    one = Limits(options=kinds | STEPS, sizes={"t": (1, 1)}, reason="plain decoding takes single tokens and rejects none")
    plain = Capability(decoding(adapter_methods.plain), contract, one)
    made = [Subject("plain", {"speculate.chain": plain}, {"speculate": "windows of one token", **absent})]
    for name, (make, drafts) in adapter_methods.CHAINS.items():
        why = {"speculate": "chains only; the method tree takes trees", **absent}
        made.append(Subject(name, {"speculate.chain": Capability(decoding(make, drafts), contract, limits)}, why))
    tree = Capability(decoding(adapter_methods.tree), contract, Limits(options=kinds | TREES, reason=NO_CHAINS))
    made.append(Subject("tree", {"speculate.tree": tree}, {"speculate": "chains use activation replay", **absent}))
    alone: dict[str, Make] = {
        "verify_snapshots": lambda t: Snapshots(),
        "verify_replay": adapter_methods.tree,
        "buffered_verify": lambda t: ReplayBuffer(),
        "buffered_step": lambda t: ReplayBuffer(5),
    }
    for kind in GIVEN.values():
        if kind.bare:
            limits = Limits(options=TREES, reason=NO_CHAINS)
            capabilities = {
                f"{kind.name}.{operation}": Capability(partial(Bare, kind.bare, decoding(make)), contract, limits)
                for operation, make in alone.items()
            }
            made.append(Subject(f"{kind.name} alone", capabilities, absent))
    return made
