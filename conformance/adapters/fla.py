"""flash-linear-attention: the gated delta rule and Kimi Delta Attention, token by token and by chunks.

The state is (key, value), as in the reference, and new for every call; there are no slots and no trees. Chunks need a GPU,
because their loop calls a method of its counter, which is a Python integer in the interpreter. The recurrent kernels are
tested with activations in fp32, bf16 and fp16; what those by chunks round to these between two launches has no contract.
"""

from dataclasses import replace
from typing import Any

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject
from ssmspec_ref.shapes import Array

from .peer_kernels.formats import formats, named
from .peer_kernels.sources import Tensors, module, one, placed, version_of

SEQUENTIAL = NumericContract()
CHUNK = 64
ABSENT = {
    "": "only the delta rule of flash-linear-attention is tested",
    "delta": "no window with accepted tokens, and no tree",
    "delta.scan_masked": "no mask of tokens",
}


class Rule:
    """One kernel of the delta rule on one device. Of its inputs q, k, v and beta are activations; the layers of
    flash-linear-attention compute g in fp32."""

    def __init__(self, run: Any, device: str, activations: str = "fp32") -> None:
        self.run, self.tensor = run, Tensors(device, activations)

    def options(self, params: Any) -> dict[str, Any]:
        return {"scale": params.scale, "output_final_state": True, "use_qk_l2norm_in_kernel": params.l2_norm}

    def scan(self, S: Array, window: Any, params: Any) -> tuple[Array, ...]:
        q, k, v, beta = map(self.tensor.active, (window.q, window.k, window.v, window.beta))
        o, S_next = self.run(
            q, k, v, g=self.tensor(window.g), beta=beta, initial_state=self.tensor(S), **self.options(params)
        )
        return self.tensor.back(o, S_next)

    def packed(self, S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, ...]:
        """Every sequence from its own state; sequences marked in `fresh` start from zeros."""
        q, k, v, beta = map(self.tensor.active, (run.q, run.k, run.v, run.beta))
        begin = self.tensor(S)
        begin[self.tensor(fresh)] = 0
        given = {"initial_state": begin, "cu_seqlens": self.tensor(bounds), **self.options(params)}
        o, S_next = self.run(q, k, v, g=self.tensor(run.g), beta=beta, **given)
        return self.tensor.back(o, S_next)


def subject(name: str, run: Any, contract: NumericContract, gate: str, device: str) -> Subject:
    rule = Rule(run, device, contract.io)
    limits = Limits({"gate": (gate,)}, reason="its gate is per head" if gate == "head" else "its gate is per key channel")
    found: dict[str, Any] = {"delta.step": one(rule.scan), "delta.scan": rule.scan, "delta.scan_packed": rule.packed}
    return Subject(name, {o: Capability(call, contract, limits) for o, call in found.items()}, ABSENT)


def adapter(device: str = "cpu") -> Adapter:
    """The adapter of the installed flash-linear-attention. Raises: ImportError, Unsupported."""
    placed(device)
    delta, kda = module("fla.ops.gated_delta_rule"), module("fla.ops.kda")
    compiled = device != "cpu"
    sequential = replace(SEQUENTIAL, exp="ex2") if compiled else SEQUENTIAL
    kernels = [
        ("fused_recurrent_gated_delta_rule", delta, "head", sequential),
        ("fused_recurrent_kda", kda, "channel", sequential),
    ]
    if compiled:
        by_chunks = replace(sequential, order="chunked", chunk=CHUNK, dot="tf32", truncates=True)
        kernels += [("chunk_gated_delta_rule", delta, "head", by_chunks), ("chunk_kda", kda, "channel", by_chunks)]
    subjects = tuple(
        subject(named(name, each), getattr(home, name), each, gate, device)
        for name, home, gate, contract in kernels
        for each in (formats(contract, states=False) if contract.order == "sequential" else (contract,))
    )
    homepage = "https://github.com/fla-org/flash-linear-attention/issues"
    return Adapter("fla", version_of("flash-linear-attention", "fla-core"), subjects, homepage)
