"""The engine's adapter for the suite: `ssmspec conform run --adapter ssmspec_fast`.

Three levels: the operations in plain PyTorch, with state and activations stored as the contract says; the acceptance
rules; and the methods, through the decoder (`adapters.decoder`). The kernels have their own adapter
(`adapters.kernels`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from importlib.metadata import PackageNotFoundError, version
from operator import or_
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.contract import BITWISE, Adapter, Capability, Limits, NumericContract, Storage, Subject
from ssmspec_ref.shapes import Array

from ..accept.greedy import Greedy
from ..accept.multi_step import judge
from ..accept.processors import Rules as Asked
from ..accept.processors import past, process
from ..accept.sampled import choices
from ..accept.walk import cut, walk
from ..device import check_device
from ..engine.sampling import Sampling
from ..engine.sequences import Sequences, new_sequences
from ..engine.window import Proposal, Verdict, Window
from ..operations import Taps
from ..operations.torch_ops import TorchOperations
from . import decoder as adapter_decoder
from . import drafts, life
from .given import GIVEN
from .given.kind import translated
from .tensors import POOLS, apart, exact, held, is_pool, nearest, pooled, wide

FORMATS: tuple[tuple[Storage, bool], ...] = (("fp32", False), ("fp32", True), ("bf16", False))
"""How state and activations are stored, and whether the arithmetic is bitwise."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def operations_of(bitwise: bool) -> TorchOperations:
    made = TorchOperations(bitwise)
    made.recurrences |= {name: kind.raw(made.arithmetic) for name, kind in GIVEN.items() if kind.raw}
    return made


@dataclass(frozen=True)
class Plain:
    """The operations on one device; states are in a pool, in slots out of order, with NaN between them."""

    device: str
    dtype: torch.dtype
    operations: TorchOperations

    def given(self, array: Array | None) -> Any:
        return None if array is None else torch.tensor(array, device=self.device).to(self.dtype)

    def exact(self, array: Array | None) -> Any:
        """Parameters, masks and indices unchanged; floats in fp32."""
        return exact(array, self.device)

    def held(self, rows: Any) -> tuple[Tensor, Tensor]:
        """The given pool and its slots; or one with these rows in descending slots down to 0, and the slot of each."""
        return held(rows, self.device, self.dtype)

    def after(self, rows: Any, pool: Tensor, slots: Tensor) -> Array:
        """What a call leaves: the whole pool, if one was given."""
        return self.back(pool if is_pool(rows) else pool[slots])

    def back(self, x: Tensor) -> Array:
        return x.double().cpu().numpy()

    # --- convolution ---

    def taps(self, params: Any) -> Taps:
        return translated(Taps, params, self.exact)

    def conv_step(self, M: Array, u: Array, params: Any) -> tuple[Array, Array]:
        y, M_next = self.conv(M, u[:, None], params)
        return y[:, 0], M_next

    def conv_masked(self, M: Array, u: Array, live: Array, params: Any) -> tuple[Array, Array]:
        return self.conv(M, u, params, live)

    def conv(self, M: Array, u: Array, params: Any, live: Array | None = None) -> tuple[Array, Array]:
        pool, slots = self.held(M)
        y = self.operations.conv_window(pool, self.given(u), self.taps(params), slots=slots, live=self.exact(live))
        return self.back(y), self.after(M, pool, slots)

    def conv_tree(self, M: Array, u: Array, parents: Array, params: Any) -> Array:
        pool, slots = self.held(M)
        return self.back(self.operations.conv_tree(pool, self.given(u), self.taps(params), self.exact(parents), slots=slots))

    def conv_commit(self, M: Array, u: Array, advanced: Array) -> Array:
        pool, slots = self.held(M)
        self.operations.conv_commit(pool, self.given(u), advanced=self.exact(advanced), slots=slots)
        return self.after(M, pool, slots)

    def conv_commit_path(self, M: Array, u: Array, path: Array) -> Array:
        pool, slots = self.held(M)
        self.operations.conv_commit(pool, self.given(u), path=self.exact(path), slots=slots)
        return self.after(M, pool, slots)

    # --- recurrences ---

    def inputs(self, kind: str, window: Any, params: Any) -> tuple[Any, Any]:
        """The engine's records of a window and of its parameters."""
        return GIVEN[kind].inputs(self.given, self.exact, window, params)

    def scan(self, kind: str) -> Callable[..., tuple[Array, Array]]:
        def run(S: Array, window: Any, params: Any, live: Array | None = None) -> tuple[Array, Array]:
            pool, slots = self.held(S)
            recurrence = self.operations.recurrences[kind]
            y = recurrence.scan(pool, *self.inputs(kind, window, params), slots=slots, live=self.exact(live))
            return self.back(y), self.after(S, pool, slots)

        return run

    def step(self, kind: str) -> Callable[..., tuple[Array, Array]]:
        def run(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
            y, S_next = self.scan(kind)(S, wide(token), params)
            return y[:, 0], S_next

        return run

    def packed(self, kind: str) -> Callable[..., tuple[Array, Array]]:
        def run(S: Array, window: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
            pool, slots = self.held(S)
            given, more = self.inputs(kind, window, params), {"slots": slots, "fresh": self.exact(fresh)}
            y = self.operations.recurrences[kind].packed(pool, *given, self.exact(bounds), **more)
            return self.back(y), self.after(S, pool, slots)

        return run

    def tree(self, kind: str) -> Callable[..., Array]:
        def run(S: Array, window: Any, ancestors: Array, params: Any) -> Array:
            pool, slots = self.held(S)
            sees = self.exact(ancestors)
            given = self.inputs(kind, window, params)
            return self.back(self.operations.recurrences[kind].tree(pool, *given, nearest(sees), sees, slots=slots))

        return run

    # --- attention ---

    def attention(
        self, K: Array, V: Array, length: Array, q: Array, k: Array, v: Array, ancestors: Array, scale: Any
    ) -> Array:
        (keys, slots), (values, _), lengths = self.held(K), self.held(V), self.lengths(length)
        window, size = (self.given(x) for x in (q, k, v)), q.shape[3] ** -0.5 if scale is None else scale
        attention: Any = self.operations.attention
        sees = self.exact(ancestors)
        return self.back(attention(*window, keys, values, lengths, ancestors=sees, scale=size, slots=slots))

    def compact(self, K: Array, V: Array, length: Array, path: Array) -> tuple[Array, Array]:
        (keys, slots), (values, _) = self.held(K), self.held(V)
        self.operations.kv_compact(keys, values, self.exact(path), self.lengths(length), slots=slots)
        return self.back(keys[slots]), self.back(values[slots])

    def positions(self, length: Array, parents: Array) -> Array:
        """As a feed of a window has them."""
        _, depths = self.operations.tree_mask(self.exact(parents))
        made: Array = (self.exact(length)[:, None] + depths.clamp_min(0)).cpu().numpy()
        return made

    def lengths(self, length: Array) -> Tensor:
        return pooled(length, self.device, torch.int64, 0)[0]


@dataclass(frozen=True)
class Rules:
    """Acceptance with given noise: how noise is generated is not tested here."""

    device: str

    def sequences(self, budget: Array, eos: tuple[int, ...]) -> tuple[Sequences, Tensor]:
        """Budgets in descending slots; the slots between have a budget that ends no run."""
        made, slots = new_sequences(2 * len(budget), 1, eos, (), self.device), apart(len(budget), self.device, 1)
        made.ended[:], made.budget[:] = False, 999
        made.budget[slots] = torch.tensor(budget, device=self.device)
        return made, slots

    def greedy(self, tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> tuple[Array, ...]:
        sequences, slots = self.sequences(budget, eos)
        chosen = torch.tensor(choice, device=self.device)
        logits = torch.nn.functional.one_hot(chosen, int(max(choice.max(), tokens.max())) + 1).float()
        window = Window(torch.tensor(tokens, device=self.device), slots, parents=torch.tensor(parents, device=self.device))
        return self.back(Greedy()(Proposal(window), logits, sequences, TorchOperations()))

    def greedy_logits(
        self, tokens: Array, parents: Array, logits: Array, budget: Array, eos: tuple[int, ...]
    ) -> tuple[Array, ...]:
        sequences, slots = self.sequences(budget, eos)
        window = Window(torch.tensor(tokens, device=self.device), slots, parents=torch.tensor(parents, device=self.device))
        given = torch.tensor(logits, device=self.device).float()
        return self.back(Greedy()(Proposal(window), given, sequences, TorchOperations()))

    def sampled(
        self, tokens: Array, parents: Array, p: Array, q: Array, coins: Array, picks: Array, budget: Array,
        eos: tuple[int, ...], law: str,
    ) -> tuple[Array, ...]:  # fmt: skip
        sequences, slots = self.sequences(budget, eos)
        tree = torch.tensor(tokens, device=self.device), torch.tensor(parents, device=self.device)
        target, draft, coin, pick = (torch.tensor(a, device=self.device).float() for a in (p, q, coins, picks))
        if law == "naive":
            found = walk(*tree, choices(target, pick))
        else:
            found = judge(*tree, target, None if law == "point_mass" else draft, coin, pick, law)
        return self.back(cut(torch.arange(len(slots), device=self.device), *found, sequences, slots))

    def process(
        self, logits: Array, prompt: Array, output: Array, temperature: float, top_k: int, top_p: float, repetition: float,
        presence: float, frequency: float, min_tokens: int, eos: tuple[int, ...],
    ) -> Array:  # fmt: skip
        settings = Sampling(temperature, top_k, top_p, repetition, presence, frequency, min_tokens)
        return self.distributions(logits, prompt, output, settings, eos)

    def process_rows(self, logits: Array, prompt: Array, output: Array, settings: Any, eos: tuple[int, ...]) -> Array:
        """Settings of every row, as the requests of a batch have them."""
        fields = {name: a.tolist() for name, a in vars(settings).items() if name != "min_p"}
        each = [Sampling(**dict(zip(fields, values, strict=True))) for values in zip(*fields.values(), strict=True)]
        rows = torch.tensor([one.row for one in each], dtype=torch.float64, device=self.device)
        needs = reduce(or_, (one.needs for one in each))
        return self.distributions(logits, prompt, output, Asked(rows, needs), eos)

    def distributions(
        self, logits: Array, prompt: Array, output: Array, settings: Sampling | Asked, eos: tuple[int, ...]
    ) -> Array:
        """The distribution after one node: its sequence holds prompt and output, and the window is a root alone."""
        rows, lengths = len(logits), [(tokens >= 0).sum(axis=1) for tokens in (prompt, output)]
        sequences = new_sequences(rows, prompt.shape[1] + output.shape[1], eos, (), self.device)
        for b, (before, after) in enumerate(zip(*lengths, strict=True)):
            written = [*prompt[b, :before], *output[b, :after]]
            sequences.tokens[b, : len(written)] = torch.tensor(written, device=self.device)
            sequences.prompt[b], sequences.length[b] = int(before), len(written)
        root = torch.zeros((rows, 1), dtype=torch.int64, device=self.device)
        seen = past(sequences, torch.arange(rows, device=self.device), root, root[..., None] == 0, logits.shape[1])
        given = torch.tensor(logits, device=self.device).float()[:, None]
        made: Array = process(given, settings, seen)[:, 0].cpu().numpy()
        return made

    def back(self, verdict: Verdict) -> tuple[Array, ...]:
        return tuple(x.cpu().numpy() for x in verdict.run)


def subject(plain: Plain, contract: NumericContract, name: str) -> Subject:
    """All operations with one storage format."""
    runs: dict[str, Callable[..., Any]] = {
        "conv.step": plain.conv_step, "conv.scan": plain.conv, "conv.scan_masked": plain.conv_masked,
        "conv.verify_tree": plain.conv_tree, "conv.commit": plain.conv_commit, "conv.commit_path": plain.conv_commit_path,
        "attention.verify_tree": plain.attention, "attention.compact": plain.compact,
    }  # fmt: skip
    laws = tuple(BITWISE) if plain.operations.bitwise else ()
    runs |= {"attention.positions": plain.positions} if contract.io == "fp32" else {}  # bf16 does not hold them
    limited = {operation: Limits(POOLS if operation.startswith("conv.") else {}) for operation in runs}
    capabilities = {operation: Capability(run, contract, limited[operation], laws) for operation, run in runs.items()}
    for kind in GIVEN.values():
        scan = plain.scan(kind.name)
        runs = {"step": plain.step(kind.name), "scan": scan, "scan_masked": scan, "verify_tree": plain.tree(kind.name)}
        runs |= {"scan_packed": plain.packed(kind.name)} if kind.bare else {}
        capabilities |= {f"{kind.name}.{name}": Capability(run, contract, Limits(POOLS), laws) for name, run in runs.items()}
    return Subject(
        name, capabilities, absent={"acceptance": "tested as the subject acceptance", "": "tested through the methods"}
    )


def adapter(device: str = "cpu") -> Adapter:
    """The engine on a device. Raises: Unsupported for a GPU that does not exist."""
    check_device(device)
    subjects = []
    for storage, bitwise in FORMATS:
        contract = NumericContract(state=storage, io=storage)
        plain = Plain(device, DTYPES[storage], operations_of(bitwise))
        subjects.append(subject(plain, contract, "operations, bitwise" if bitwise else "operations"))
    rules, fp32 = Rules(device), NumericContract()
    decisions = {
        "acceptance.greedy": Capability(rules.greedy, fp32, Limits({"ids": ("near", "far")}, reason="it takes logits")),
        "acceptance.sampled": Capability(rules.sampled, fp32),
        "acceptance.greedy_logits": Capability(rules.greedy_logits, fp32),
        "acceptance.process": Capability(rules.process, fp32),
        "acceptance.process_rows": Capability(rules.process_rows, fp32, Limits({"min_p": ("off",)}, reason="no min-p")),
    }
    subjects.append(Subject("acceptance", decisions, absent={"": "another part of the engine"}))
    subjects.append(drafts.subject(device, fp32))
    subjects += adapter_decoder.subjects(device, operations_of(bitwise=True), fp32)
    subjects += life.subjects(device, operations_of(bitwise=True), fp32)
    try:
        installed = version("ssmspec")
    except PackageNotFoundError:
        installed = "checkout"
    return Adapter("ssmspec_fast", installed, tuple(subjects))
