"""The formats in which engines call a kernel: activations in fp32, bf16 or fp16, states in fp32 or bf16."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ssmspec_ref.contract import Capability, NumericContract, Storage, Subject

Capabilities = dict[str, dict[str, Capability]]
"""Of each kernel, what it computes."""

ENGINES: tuple[tuple[Storage, Storage], ...] = (("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "bf16"), ("fp16", "fp32"))
"""Activations and state: the first is how a kernel is tested without rounding, the second the default of most engines for
hybrid models, the third a state that has the dtype of the model, the fourth a checkpoint in fp16."""


def formats(contract: NumericContract, states: bool = True) -> Iterator[NumericContract]:
    """A contract in each of the formats; without `states` those with a state in fp32 only."""
    return (replace(contract, io=io, state=state) for io, state in ENGINES if states or state == "fp32")


def named(name: str, contract: NumericContract) -> str:
    """The name of a subject in a format: that of the kernel, and the format unless it is fp32."""
    told = [] if contract.io == "fp32" else [contract.io]
    return ", ".join([name, *told, *([] if contract.state == "fp32" else [f"{contract.state} state"])])


def narrow(
    contract: NumericContract, made: Callable[[NumericContract], Capabilities], absent: Mapping[str, str]
) -> Iterator[Subject]:
    """The kernels as an engine calls them: activations in bf16 or fp16, the log decay in fp32, the state in fp32 or bf16."""
    for one in formats(contract):
        if one.io != "fp32":
            for name, capabilities in made(one).items():
                yield Subject(named(name, one), capabilities, absent)
