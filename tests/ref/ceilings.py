"""Ceilings of the bounds of what runs token by token: one number each for the largest and for the median bounds of the cases
of the tier standard, by operation, contract and output.

    python -m tests.ref.ceilings --write        renews the file from the bounds of the code that is imported

Each number is the sum over the cases of the natural logarithm, so that one case whose bound grows by 1 % changes it by 0.01,
whatever the other bounds are.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from conformance.suite import SPECIFICATIONS
from conformance.suite.specification import Specification
from ssmspec_ref.contract import Limits, NumericContract

FILE = Path(__file__).with_suffix(".json")
ROOM = 0.005
"""Half of what one case's 1 % makes."""
KERNEL = NumericContract(state="bf16", io="bf16", exp="ex2", softplus="log", dot="tf32", stored_every_token=True)
CONTRACTS = {
    "fp32": NumericContract(),
    "fp32, bf16 io": NumericContract(io="bf16", dot="bf16"),
    "bf16": NumericContract(state="bf16", io="bf16", stored_every_token=True),
    "bf16 kernel": KERNEL,
    "fp16": NumericContract(state="fp16", io="fp16", dot="tf32x3", truncates=True, ftz=True),
    "int8": replace(KERNEL, state="int8", state_scale="row"),
}
UNSCALED = ("shortconv", "mamba3")
"""Recurrences that have no bounds for a state with scales."""
OPERATIONS = ("step", "scan")
LEAST = 1e-300
"""Stands for a bound of 0, whose growth is seen, too."""

Sums = dict[str, dict[str, list[float]]]


def specifications() -> Iterator[Specification]:
    """The operations that run token by token, each once."""
    for specification in SPECIFICATIONS:
        kind, _, operation = specification.operation.partition(".")
        if (operation in OPERATIONS and kind != "layer") or specification.operation == "conv.scan_masked":
            yield specification


def sums(specification: Specification, contract: NumericContract) -> dict[str, list[float]]:
    """For each output the sums over the cases of log largest bound and log median of the bounds that are not 0."""
    found: dict[str, list[float]] = {}
    for case in specification.cases("standard", Limits()):
        for one in specification.expected(specification.draw(case, contract), contract, None):
            of = found.setdefault(one.name.partition(" ")[0], [0.0, 0.0])
            bounds = one.bound[one.bound > 0] if np.any(one.bound > 0) else np.array([LEAST])
            of[0] += float(np.log(bounds.max()))
            of[1] += float(np.log(np.median(bounds)))
    return {name: [round(value, 4) for value in values] for name, values in found.items()}


def measured(specification: Specification) -> Sums:
    """The sums of an operation in every contract that it has bounds for."""
    kind = specification.operation.partition(".")[0]
    return {name: sums(specification, c) for name, c in CONTRACTS.items() if c.state_scale is None or kind not in UNSCALED}


def changed(operation: str, contract: str, found: dict[str, list[float]]) -> list[str]:
    """What is no longer as the file says, in words; NaN is never."""
    said, known = [], json.loads(FILE.read_text())[operation][contract]
    for output, sums_now in found.items():
        for what, old, new in zip(("largest", "median"), known[output], sums_now, strict=True):
            if old != new and not abs(new - old) <= ROOM:
                said.append(
                    f"{operation}, {contract}: {what} bounds of {output}, all together, are e^{new - old:.4f} times as wide"
                )
    return said


if __name__ == "__main__" and "--write" in sys.argv:
    FILE.write_text(json.dumps({s.operation: measured(s) for s in specifications()}, indent=1) + "\n")
