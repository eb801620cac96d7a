"""The engine over the Triton kernels, on a GPU or in the repaired interpreter; triton chooses when it is imported.

    python tests/fast/on_kernels.py [--device cuda] [--methods NAME,..] [--budget 4] [--nodes 3] [--plant WHAT] [FAMILY ..]

For each family, prints one line of JSON: `float64`, the largest relative difference of the fast and of the bitwise kernels'
logits to float64 PyTorch (prefill, then single tokens); `methods`, for each method whether bitwise windows over the kernels
emit what the same kernels emit token by token; `fast`, the same for the fast kernels. `--plant D` forgets D on the way,
`--plant gates` commits each token with the gates of another. With `--settled`, instead, the largest relative difference of
the states that each method leaves behind some windows, padding rows among them, to those of float32 PyTorch.
"""

import argparse
import json
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))


def logits(model: Any, prompt: list[int], operations: Any, at: int) -> Any:
    """After a prefill of `at` tokens, the logits at the others, one by one."""
    import torch

    from ssmspec_fast.draft.nothing import Nothing
    from ssmspec_fast.engine.decoder import Decoder
    from ssmspec_fast.engine.sequences import new_sequences
    from ssmspec_fast.methods.plain import Plain

    decoder = Decoder(model, Plain(), operations, slots=2, cache=32)
    sequences = new_sequences(2, 33, (), (), model.device)
    sequences.add(1, prompt[:at], 20, 0)
    decoder.prefill([prompt[:at]], [1])
    found = []
    for token in prompt[at:]:
        feed = decoder.feed(Nothing().propose(sequences, torch.tensor([1], device=model.device)).window, sequences)
        found.append(decoder.verify(feed)[0, 0].double().cpu())
        decoder.pools.length[1] += 1
        sequences.tokens[1, sequences.length[1]] = token
        sequences.length[1] += 1
    return torch.stack(found)


def judge(name: str, device: str, budget: int, nodes: int, chosen: list[str]) -> dict[str, Any]:
    import torch

    from ssmspec_fast.engine.loop import Engine
    from ssmspec_fast.engine.requests import Settings
    from ssmspec_fast.operations.torch_ops import TorchOperations
    from ssmspec_fast.operations.triton_ops import TritonOperations
    from tests.fast.drafters import CHAINS, Skilled
    from tests.fast.models import drawn, prompts, to_device

    prompt = prompts(8, (7,))[0]
    wanted = logits(drawn(name, torch.float64), prompt, TorchOperations(), 6)
    model, errors = to_device(drawn(name), device), []
    methods: dict[str, bool] = {}
    fast: dict[str, bool] = {}
    for bitwise, found in ((False, fast), (True, methods)):
        operations = TritonOperations(bitwise)
        came = logits(model, prompt, operations, 6)
        errors.append(float((came - wanted).abs().max() / wanted.abs().max()))
        if not chosen:
            continue
        given = prompts(9, (5, 2))
        build: dict[str, Any] = {"operations": operations, "slots": 2, "cache": 48}
        plain = [r.tokens for r in Engine(model, **build).generate(given, Settings(budget))]
        for method in chosen:
            drafter = Skilled(plain, nodes, 0.7, tree=method == "tree")
            spoken = [r.tokens for r in Engine(model, drafter, CHAINS[method](), **build).generate(given, Settings(budget))]
            found[method] = spoken == plain
    return {"name": name, "float64": errors, "methods": methods, "fast": fast}


def settled(name: str, device: str, nodes: int, method: str) -> dict[str, Any]:
    """Windows of two sequences in slots out of order over the fast kernels; then each is taken out."""
    import torch

    from ssmspec_fast.accept.greedy import Greedy
    from ssmspec_fast.engine.decoder import Decoder
    from ssmspec_fast.engine.loop import Engine
    from ssmspec_fast.engine.requests import Settings
    from ssmspec_fast.engine.sequences import new_sequences
    from ssmspec_fast.methods.plain import Plain
    from ssmspec_fast.operations.torch_ops import TorchOperations
    from ssmspec_fast.operations.triton_ops import TritonOperations
    from tests.fast.drafters import CHAINS, Skilled
    from tests.fast.models import drawn, prompts, to_device

    model, given, plain = to_device(drawn(name), device), prompts(9, (3, 1)), TorchOperations()
    wanted = [r.tokens for r in Engine(model, slots=2, cache=48, operations=plain).generate(given, Settings(20))]
    operations, drafter = TritonOperations(), Skilled(wanted, nodes, 0.7, tree=method == "tree")
    decoder = Decoder(model, CHAINS[method](), operations, slots=4, cache=48, window=nodes)
    sequences, slots = new_sequences(4, 60, (), (), model.device), torch.tensor([3, -1, 1], device=model.device)
    for number, (slot, prompt) in enumerate(zip((3, 1), given, strict=True)):
        sequences.add(slot, prompt, 20, number)
    decoder.prefill(given, [3, 1])
    for _ in range(3):
        proposal = drafter.propose(sequences, slots)
        feed = decoder.feed(proposal.window, sequences)
        verdict = Greedy()(proposal, decoder.verify(feed), sequences, operations)
        decoder.commit(feed, verdict)
        sequences.commit(verdict)
    worst = 0.0
    for number, slot in enumerate((3, 1)):
        tokens = [*given[number], *sequences.output(slot)]
        other = Decoder(model, Plain(), plain, slots=1, cache=48)
        other.prefill([tokens], [0])
        came, right = decoder.snapshot(slot, sequences), other.snapshot(0, sequences)
        assert came.length == right.length == len(tokens) - 1
        pairs = [pair for a, b in zip(came.layers, right.layers, strict=True) for pair in zip(a, b, strict=True)]
        worst = max(worst, *(float((a - b).abs().max() / b.abs().max()) for a, b in pairs if a.numel()))
    return {"name": name, "method": method, "settled": worst}


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods")
    parser.add_argument("--settled", action="store_true")
    parser.add_argument("--plant", choices=("D", "gates"))
    parser.add_argument("--budget", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=3)
    return parser.parse_args(arguments)


def plant(what: str) -> None:
    from ssmspec_fast.layers.delta import Delta
    from ssmspec_fast.operations import triton_recurrences

    names = vars(triton_recurrences)
    whole = names["taken"]
    if what == "D":
        names["taken"] = lambda *args, **named: whole(*args, **named) | ({"D": None} if "D" in args[0].takes else {})
    else:
        Delta.beside = lambda self, inputs: (inputs.g.roll(1, dims=1), inputs.beta)  # type: ignore[method-assign]


def run(given: argparse.Namespace) -> None:
    from tests.fast.drafters import CHAINS
    from tests.fast.models import ONE_OF_EACH

    if given.plant:
        plant(given.plant)
    chosen = list(CHAINS) if given.methods is None else [name for name in given.methods.split(",") if name]
    for name in given.names or ONE_OF_EACH:
        for method in chosen if given.settled else ():
            print(json.dumps(settled(name, given.device, given.nodes, method)), flush=True)
        if not given.settled:
            print(json.dumps(judge(name, given.device, given.budget, given.nodes, chosen)), flush=True)


def main(arguments: list[str]) -> None:
    """One run, or several between plus signs."""
    runs = [parsed(part.split("|")) for part in "|".join(arguments).split("|+|")]
    if runs[0].device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
        from conformance.interpreter.faithful import faithful

        interpreted: AbstractContextManager[None] = faithful()
    else:
        interpreted = nullcontext()
    import torch

    with interpreted, torch.no_grad():
        for given in runs:
            run(given)


if __name__ == "__main__":
    main(sys.argv[1:])
