"""The engine as decoders of whole models: `ssmspec fuzz --adapter ssmspec_fast.adapters.sequences:adapter`.

Every method of the engine with PyTorch operations, and where kernels can run (on a GPU, or in the interpreter) with the
kernels too, in bitwise and in fast mode. Pools are filled with NaN at first.
"""

import copy
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ssmspec_ref.contract import Adapter, Decoding, Limits, NumericContract, TokenVerdict, TokenWindow
from ssmspec_ref.errors import Unsupported
from ssmspec_ref.shapes import Array

from ..device import check_device
from ..engine.decoder import Decoder
from ..engine.sequences import new_sequences
from ..engine.state import SequenceState
from ..engine.window import Verdict, Window
from ..models.model import Model
from ..operations import Emitted, Operations
from ..operations.torch_ops import TorchOperations
from . import methods as adapter_methods
from .methods import Make
from .model import model_of
from .poison import by_slot, poison

Taken = tuple[SequenceState, tuple[int, ...]]


class SlotDecoder:
    """A `Decoder` of the engine and the tokens of its sequences."""

    def __init__(
        self,
        make: Make,
        operations: Operations,
        device: str,
        model: Any,
        slots: int,
        cache: int,
        window: int,
    ) -> None:
        made = model if isinstance(model, Model) else model_of(model, device, cache)
        self.device, self.live = device, set[int]()
        self.decoder = Decoder(made, make(window), operations, slots=slots, cache=cache, window=window)
        self.sequences = new_sequences(slots, cache + window, (), (), device)
        self.poison()

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[int]) -> None:
        self.decoder.prefill(prompts, slots)
        for prompt, slot in zip(prompts, slots, strict=True):
            self.add(slot, prompt)

    def add(self, slot: int, tokens: Sequence[int]) -> None:
        self.sequences.add(slot, list(tokens), self.decoder.cache, 0)
        self.live.add(slot)

    def tensor(self, array: Array | None) -> Any:
        return None if array is None else torch.tensor(array, device=self.device)

    @torch.no_grad()
    def verify(self, window: TokenWindow) -> Array:
        tokens, slots, lengths, parents = map(self.tensor, (window.tokens, window.slots, window.lengths, window.parents))
        self.window = Window(tokens, slots, lengths, parents, window.drafts)
        self.feed = self.decoder.feed(self.window, self.sequences)
        return self.decoder.verify(self.feed).double().cpu().numpy()

    @torch.no_grad()
    def commit(self, verdict: TokenVerdict) -> None:
        advanced, path, row, root = map(self.tensor, (verdict.advanced, verdict.path, verdict.row, verdict.root))
        steps = torch.arange(path.shape[1], device=self.device)
        path = torch.where(steps < advanced[:, None], path, -1)
        said = torch.gather(self.window.tokens[row], 1, path.clamp_min(0))
        after = torch.cat([said[:, 1:], said[:, :1]], dim=1)
        after = torch.where(steps == advanced[:, None] - 1, root[:, None], after)
        run = Emitted(torch.where(path >= 0, after, -1), path, advanced, torch.zeros_like(advanced, dtype=torch.bool))
        decided = Verdict(run, row, self.window.sequences)
        self.decoder.commit(self.feed, decided)
        self.sequences.commit(decided)

    @torch.no_grad()
    def fork(self, slot: int, to: int) -> None:
        self.decoder.fork(slot, to, self.sequences)
        self.live.add(to)

    def release(self, slot: int) -> None:
        self.decoder.release(slot)
        self.live.discard(slot)

    def tokens(self, slot: int) -> tuple[int, ...]:
        return tuple(self.sequences.tokens[slot, : int(self.sequences.length[slot])].tolist())

    @torch.no_grad()
    def snapshot(self, slot: int) -> Taken:
        return self.decoder.snapshot(slot, self.sequences), self.tokens(slot)

    def restore(self, slot: int, held: Taken) -> None:
        taken, tokens = held
        self.decoder.restore(slot, taken)
        self.add(slot, tokens)

    @torch.no_grad()
    def flush(self, slots: Sequence[int]) -> None:
        d = self.decoder
        d.method.settle(d.pools, torch.tensor(slots, device=self.device), d.model, self.sequences, d.operations)

    @torch.no_grad()
    def state(self, slot: int) -> tuple[tuple[Array, Array], ...]:
        """The state of a copy, which is settled first."""
        pools = self.decoder.pools
        self.decoder.pools = copy.deepcopy(pools)
        try:
            held = self.decoder.settled(slot, self.sequences)
        finally:
            self.decoder.pools = pools
        return tuple((a.double().cpu().numpy(), b.double().cpu().numpy()) for a, b in held.layers)

    def memory(self, slot: int) -> tuple[Array, ...]:
        return tuple(x[slot].cpu().numpy().copy() for x in by_slot(self.decoder))

    def poison(self) -> None:
        poison(self.decoder, set(range(self.decoder.slots)) - self.live, self.live)


def decodings(operations: Operations, device: str, contract: NumericContract, how: str) -> tuple[Decoding, ...]:
    """Every method with some operations; `how` is appended to each method's name."""

    def made(name: str, make: Make, **shape: Any) -> Decoding:
        start = partial(SlotDecoder, make, operations, device)
        return Decoding(f"{name}; {how}", start, contract, bits=how if operations.bitwise else "", **shape)

    one = Limits(sizes={"t": (1, 1)}, reason="plain decoding takes single tokens")
    return (
        made("plain", adapter_methods.plain, limits=one),
        *(made(name, make, drafts=drafts) for name, (make, drafts) in adapter_methods.CHAINS.items()),
        made("tree", adapter_methods.tree, chains=False, trees=True),
    )


def adapter(device: str = "cpu") -> Adapter:
    """The engine on a device; with the kernels too where they run. Raises: Unsupported for a GPU that does not exist."""
    check_device(device)
    made = decodings(TorchOperations(bitwise=True), device, NumericContract(), "torch")
    if device != "cpu" or os.environ.get("TRITON_INTERPRET") == "1":
        made += over_kernels(device)
    return Adapter("ssmspec_fast", torch.__version__, decodings=made)


def kernels(device: str = "cuda") -> Adapter:
    """The engine with the kernels only. Raises: Unsupported for a device that cannot run kernels."""
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise Unsupported("kernels do not run on a cpu; give --device cuda, or --device interpreter")
    check_device(device)
    return Adapter("ssmspec_fast over the kernels", torch.__version__, decodings=over_kernels(device))


def over_kernels(device: str) -> tuple[Decoding, ...]:
    from ssmspec_kernels.contract import CONTRACT

    from ..operations.triton_ops import TritonOperations

    class Interpreted(TritonOperations):
        """Kernels for everything with a state; products and norms by PyTorch, because they take the interpreter a second
        each."""

        def __init__(self, bitwise: bool = False) -> None:
            super().__init__(bitwise)
            plain: Any = TorchOperations(bitwise)
            for name in ("linear", "linear_normed", "logits", "norm", "gated_norm"):
                setattr(self, name, getattr(plain, name))

    operations = Interpreted if device == "cpu" else TritonOperations
    at_once = NumericContract(**{**vars(CONTRACT), "order": "output_only"})
    return (
        *decodings(operations(bitwise=True), device, CONTRACT, "kernels, bitwise"),
        *decodings(operations(), device, at_once, "kernels"),
    )
