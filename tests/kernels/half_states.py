"""Which kernels do not compile to Triton IR where their state S is stored in bf16, as JSON: `failed`, of those `seen`.

What the compiler holds of types the interpreter does not: a loop that carries a state must begin with it in fp32. The entries
of the catalogue store states in fp32, so each kernel is given one of its launches with S in bf16 instead. Run by
`test_compiled` in a process without the interpreter.
"""

import json
from dataclasses import replace

import torch
from triton.compiler import CompilationError

from perf_gates.static import catalogue
from perf_gates.static.capture import Launch, optimised_ir
from perf_gates.static.compiled import launches_on

HOPPER = 90


def halved(launch: Launch) -> Launch:
    """The launch with S in bf16."""
    at = launch.kernel.arg_names.index("S")
    return replace(launch, args=(*launch.args[:at], launch.args[at].to(torch.bfloat16), *launch.args[at + 1 :]))


def main() -> None:
    seen: dict[str, bool] = {}
    for entry in catalogue.entries():
        for launch in launches_on(entry, HOPPER) if HOPPER in entry.quick else ():
            if launch.name in seen or "S" not in launch.kernel.arg_names:
                continue
            try:
                optimised_ir(halved(launch), HOPPER)
                seen[launch.name] = True
            except CompilationError:
                seen[launch.name] = False
    print(json.dumps({"seen": sorted(seen), "failed": sorted(name for name, sound in seen.items() if not sound)}))


if __name__ == "__main__":
    main()
