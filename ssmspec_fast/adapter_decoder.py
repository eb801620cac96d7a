"""The methods as the suite sees them: what lies between a layer's projections, decoded window after window by a `Decoder`.

The decoder gets a model of one layer, whose projections hand on what the suite gives: a token is a number that is looked up.
Everything between is the engine's: feed, recur, commit, settle, fork, release. Sequences lie in slots out of order, a row of
padding in every batch; pools begin as NaN, and so does what the number of no token names.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.contract import Capability, Limits, NumericContract, Subject
from ssmspec_ref.shapes import Array

from .config import BlockConfig, Branch, DeltaConfig, Mamba1Config, Mamba2Config, ModelConfig, NormConfig
from .decoder import Decoder
from .handover import Held
from .layers.delta import Delta
from .layers.delta import Gates as DeltaGates
from .layers.linear import Linear, Product
from .layers.mamba1 import Mamba1
from .layers.mamba2 import Gates as SSDGates
from .layers.mamba2 import Mamba2
from .methods import Method
from .methods.activation_replay import ActivationReplay
from .methods.joint import Joint
from .methods.plain import Plain
from .methods.replay_buffer import ReplayBuffer
from .methods.snapshots import Snapshots
from .methods.tree import Tree
from .model import Block, Model, Recurrent
from .operations import DeltaParams, Emitted, Operations, SelectiveParams, SSDParams, Taps
from .sequences import new_sequences
from .state import Pools, tensors
from .window import Verdict, Window

LONGEST = 512
"""Tokens of a sequence."""


class Tokens:
    """What the projections would make of each token: `pre` and the gates, by number; number 0 is no token."""

    def __init__(self, rows: int, device: str) -> None:
        self.rows, self.device = rows, device
        self.held: list[Tensor | None] = []
        self.count = 0

    def add(self, *parts: Array | None) -> Tensor:
        """The numbers (b, t) of the tokens of a window."""
        new = [None if part is None else torch.tensor(part, device=self.device).float() for part in parts]
        if not self.held:
            self.held = [None if x is None else x.new_full((1, *x.shape[2:]), float("nan")) for x in new]
        for i, x in enumerate(new):
            held = self.held[i]
            self.held[i] = None if x is None or held is None else torch.cat([held, x.flatten(0, 1)])
        b, t = parts[0].shape[:2]  # type: ignore[union-attr]
        first, self.count = 1 + self.count, self.count + b * t
        return torch.arange(first, first + b * t, device=self.device).view(b, t)

    def at(self, u: Tensor) -> list[Tensor | None]:
        return [None if x is None else x[u[..., 0].long()] for x in self.held]


class Given:
    """A mixer whose projection hands on what is given: its room is filled from there."""

    config: Any
    tokens: Any

    @property
    def projection(self) -> Linear:
        return Linear(torch.empty((self.config.conv.channels, 0), device=self.tokens.device))

    @property
    def reads(self) -> slice:
        return slice(0, self.config.conv.channels)

    def given(self, u: Tensor, room: Tensor | None) -> list[Any]:
        """`pre`, in its room, and the gates."""
        pre, *gates = self.tokens.at(u)
        return [pre if room is None else room.copy_(pre), *gates]


@dataclass(frozen=True)
class GivenSSD(Given, Mamba2):
    """Mamba-2 between its projections."""

    tokens: Any = None

    def inputs(self, u: Any, operations: Operations, room: Tensor | None = None) -> Any:
        pre, dt, z = self.given(u, room)
        return pre, SSDGates(dt, z)

    def output(self, y: Any, gates: Any, operations: Operations) -> Product:
        return Product(None, y.flatten(2))


@dataclass(frozen=True)
class GivenDelta(Given, Delta):
    """Gated DeltaNet between its projections."""

    tokens: Any = None

    def inputs(self, u: Any, operations: Operations, room: Tensor | None = None) -> Any:
        pre, g, beta = self.given(u, room)
        return pre, DeltaGates(g, beta, g)

    def output(self, y: Any, gates: Any, operations: Operations) -> Product:
        return Product(None, y.flatten(2))


@dataclass(frozen=True)
class GivenSelective(Given, Mamba1):
    """Mamba-1 between its projections."""

    tokens: Any = None

    def inputs(self, u: Any, operations: Operations, room: Tensor | None = None) -> Any:
        pre, z = self.given(u, room)
        return pre, z

    def output(self, y: Any, gates: Any, operations: Operations) -> Product:
        return Product(None, y)


def parts(inputs: Any) -> tuple[Array | None, ...]:
    """`pre` and the gates of a window, in the order in which the layers above read them."""
    gates = inputs.gates
    if hasattr(gates, "beta"):
        return inputs.pre, gates.g, gates.beta
    return (inputs.pre, gates.dt, gates.z) if hasattr(gates, "dt") else (inputs.pre, gates.z)


def layer_of(mixer: Any, gated: bool, tokens: Tokens) -> Recurrent:
    """The engine's layer of a record of the reference; `gated` where z gates y inside."""

    def tensor(array: Any) -> Any:
        return None if array is None else torch.tensor(array, device=tokens.device).float()

    none, width, p = Linear(torch.empty(0)), mixer.conv.weight.shape[1], mixer.params
    taps = Taps(tensor(mixer.conv.weight), tensor(mixer.conv.bias), mixer.conv.activation)
    if hasattr(mixer, "key_heads"):
        sizes = mixer.key_heads, mixer.value_heads, mixer.key_channels, mixer.value_channels
        unread = torch.zeros(mixer.value_heads, device=tokens.device)
        rule = DeltaParams(unread, unread, p.l2_norm, p.scale, p.eps)
        return GivenDelta(DeltaConfig(*sizes, width, p.eps), none, none, none, none, taps, rule, unread, none, tokens)
    fixed = tensor(p.A), tensor(p.D), tensor(p.dt_bias), p.dt_softplus
    if hasattr(mixer, "x_proj"):
        inner = Mamba1Config(p.A.shape[0], p.A.shape[1], mixer.dt_proj.shape[1], width)
        products = Linear(tensor(mixer.x_proj)), Linear(tensor(mixer.dt_proj))
        return GivenSelective(inner, none, taps, *products, SelectiveParams(*fixed), none, tokens)
    groups = mixer.groups, width, mixer.x_groups, mixer.B_groups
    config = Mamba2Config(p.A.shape[0], mixer.channels, mixer.state, *groups)
    norm = None if gated else torch.empty(0)  # with a norm behind it, the recurrence does not gate
    return GivenSSD(config, none, taps, SSDParams(*fixed, p.dt_limit), none, norm, tokens=tokens)


def model_of(layer: Recurrent, outputs: int, device: str) -> Model:
    """One layer whose tokens pass embedding, norms and head as they are."""
    config = ModelConfig("given", LONGEST, 1, (BlockConfig((Branch(layer.config),)),), NormConfig(0.0))
    numbers = torch.arange(2**16, device=device, dtype=torch.float32)[:, None]
    same: Any = lambda x, operations, residual=None: x  # noqa: E731
    return Model(config, numbers, (Block((layer,), same),), same, torch.eye(outputs, device=device))


class Decoding:
    """The sequences of a batch under a method; `make` is given the tokens of the longest window, which is the first.

    With two drafts, every sequence has a second row, of the same root, that is not accepted.
    """

    def __init__(
        self, make: Callable[[int], Method], operations: Operations, device: str, drafts: int, mixer: Any, state: Any
    ) -> None:
        self.make, self.operations, self.device, self.drafts = make, operations, device, drafts
        self.mixer, self.begin, self.rows = mixer, state, len(state.M)
        self.tokens = Tokens(self.rows, device)
        self.slots = torch.arange(2 * (self.rows - 1), -1, -2, device=device)
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
CHAINS: dict[str, tuple[Callable[[int], Method], int]] = {
    "snapshots": (lambda t: Snapshots(), 1),
    "snapshots, eager": (lambda t: Snapshots(eager=True), 1),
    "snapshots, two drafts": (lambda t: Snapshots(2), 2),
    "joint": (lambda t: Joint(), 1),
    "joint, two drafts": (lambda t: Joint(2), 2),
    "activation replay": (lambda t: ActivationReplay(), 1),
    "activation replay, two drafts": (lambda t: ActivationReplay(2), 2),
    "replay buffer": (lambda t: ReplayBuffer(), 1),
    "replay buffer of two windows": (lambda t: ReplayBuffer(2 * t), 1),
}
STEPS: dict[str, tuple[str, ...]] = {"accept": ("all", "root")}


def subjects(device: str, operations: Operations, contract: NumericContract) -> list[Subject]:
    """Every method on chains, the tree on trees, and each recurrence alone under the method that has the operation's name."""

    def decoding(make: Callable[[int], Method], drafts: int = 1) -> Callable[..., Decoding]:
        return partial(Decoding, make, operations, device, drafts)

    limits, absent = Limits(options=KINDS, reason=NOT_THERE), {"": "another part of the engine"}
    one = Limits(options=KINDS | STEPS, sizes={"t": (1, 1)}, reason="plain decoding takes single tokens, none is rejected")
    plain = Capability(decoding(lambda t: Plain()), contract, one)
    made = [Subject("plain", {"speculate.chain": plain}, {"speculate": "windows of one token", **absent})]
    for name, (make, drafts) in CHAINS.items():
        why = {"speculate": "chains only; trees are the tree's", **absent}
        made.append(Subject(name, {"speculate.chain": Capability(decoding(make, drafts), contract, limits)}, why))
    tree = Capability(decoding(lambda t: Tree()), contract, limits)
    made.append(Subject("tree", {"speculate.tree": tree}, {"speculate": "a chain is activation replay's", **absent}))
    alone: dict[str, Callable[[int], Method]] = {
        "verify_snapshots": lambda t: Snapshots(),
        "verify_replay": lambda t: Tree(),
        "buffered_verify": lambda t: ReplayBuffer(),
        "buffered_step": lambda t: ReplayBuffer(5),
    }
    by_head = Limits(options={"gate": ("head",)}, reason=NOT_THERE)
    for kind in ("ssd", "delta"):
        capabilities = {
            f"{kind}.{operation}": Capability(partial(Bare, decoding(make)), contract, by_head)
            for operation, make in alone.items()
        }
        made.append(Subject(f"{kind} alone", capabilities, absent))
    return made
