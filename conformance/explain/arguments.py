"""What an implementation receives: every argument of an operation in a sentence, and those of a case with their shapes."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ssmspec_ref.contract import NumericContract
from ssmspec_ref.slots import Pool

from ..cases import Case
from ..diagnose.leaves import Leaf, full_name, leaves, named
from ..run.sessions import opened
from ..suite.specification import Specification

SHOWN = 24
"""The most numbers of an array of integers or flags that are printed; of larger arrays the shape is enough."""
ARGUMENTS = {
    "M": "the last w inputs of the convolution, oldest first",
    "u": "inputs of the convolution",
    "params": "weights and switches that all tokens share",
    "live": "true where a token is real; the others are no-ops",
    "parents": "node number of each node's parent; -1 at the root (node 0), -2 at padding",
    "ancestors": "[b, t, j] is true if node j lies on the path from the root to node t, t included",
    "advanced": "number of tokens accepted in each row; 0: the row keeps its state",
    "path": "numbers of the accepted nodes, the root (0) first, then -1",
    "S": "states before the first token",
    "token": "one token of each row",
    "window": "the tokens of each row, or the nodes of its tree",
    "run": "all sequences one after the other in a single row: b is 1 here, and t counts all tokens",
    "bounds": "sequence i has the tokens bounds[i] to bounds[i + 1] - 1 of the run, none if they are equal",
    "fresh": "one flag for each sequence: it starts from zeros, and its S is never read",
    "K": "keys of the cache; only those before `length` hold something",
    "V": "values of the cache; only those before `length` hold something",
    "length": "entries of the cache in use, in each row",
    "q": "queries of the nodes",
    "k": "keys of the nodes",
    "v": "values of the nodes",
    "scale": "factor of the scores",
    "tokens": "token of each node; node 0 is the root, already emitted",
    "choice": "[b, i] is the target's choice after node i",
    "budget": "how many tokens each row may still emit",
    "eos": "the tokens that end a sequence",
    "p": "[b, i] is the target's distribution of the token after node i",
    "coins": "[b, i] decides node i: it is accepted if the coin is below its probability",
    "picks": "[b, i] draws the token that is emitted after node i, if the path ends there",
    "law": "how the drafts were drawn from q",
    "logits": "logits of each row, or of each node",
    "prompt": "tokens of the prompt, padded with -1",
    "output": "tokens generated so far, drafts on the path included, padded with -1",
    "temperature": "logits are divided by it; 0: greedy",
    "top_k": "number of tokens to keep; 0: all",
    "top_p": "probability to keep; 1: all",
    "repetition": "repetition penalty; 1: none",
    "presence": "presence penalty; 0: none",
    "frequency": "frequency penalty; 0: none",
    "min_tokens": "tokens of `eos` are masked before so many tokens are generated",
    "settings": "the settings above, one number for each row, and min_p",
    "history": "the text so far, prompt and output",
    "longest": "the longest suffix to look up, in tokens",
    "drafts": "how many drafts to give",
    "table": "[i] holds the drafts that follow token i",
    "layer": "the layer's weights; build the layer from them",
    "mixer": "weights between the layer's projections: convolution and recurrence",
    "rows": "sequences of the batch",
    "script": "what is then called: u holds the inputs; each window feeds the tokens begin to end, or first undoes some",
    "rounds": "what is then called: verify(window, parents), commit(advanced, path), and state() where read is true",
    "state": "states before the first window",
    "beside": "states of a second instance, which is called in turn with the first",
    "slots": "sequences that the server holds at once",
    "block": "a state is saved after every multiple of so many tokens; 0: never",
    "steps": "what is done to the server, in order",
    "ranks": "tensor-parallel ranks of each server",
    "prompts": "one prompt in each row",
    "count": "tokens to generate",
    "speculate": "false: decode without drafts; true: with them",
    "roots": "the first token of each row",
    "seed": "seed of your random numbers",
}  # fmt: skip
ARGUMENTS_OF = {
    "acceptance.sampled": {
        "q": "[b, i] is the draft model's distribution after node i: the children of node i were drawn from it",
        "law": "how the drafts were drawn from q; a draft whose q is 0 (the second of two equal siblings drawn without "
        "replacement) is skipped, and changes neither p nor q",
    },
    "attention.compact": {"path": "numbers of the accepted nodes; node i lies at entry length + i of the cache"},
    "draft.lookup": {"tokens": "how many tokens to give", "choice": "which earlier occurrence to follow: first or last"},
    "draft.png": {"tokens": "how many tokens a draft has"},
    "generate.sampled": {
        "p": "[i] is the target's distribution after token i",
        "q": "[i] is the draft model's distribution after token i",
        "drafts": "drafts of each window",
        "count": "tokens to generate in each row",
    },
}
"""Arguments that mean something else in one operation."""
STEPS = (
    "weights and switches that all tokens share. dt_bias is added to dt, then softplus, then the clamp to dt_limit; D x is "
    "added to the output, and the sum is multiplied by silu(z)"
)
STEPPED = {"D", "dt_bias", "dt_softplus", "dt_limit"}
"""The parameters of a recurrence to which `STEPS` applies."""
DECISIONS = ("acceptance.greedy", "acceptance.greedy_logits", "acceptance.sampled")
"""Operations that return a path."""
DECIDED = {
    "tokens": "what is emitted, up to and with the first `eos` token, and at most `budget` tokens; then -1",
    "path": "the root (0) and the accepted nodes, as many as tokens are emitted: a cut shortens both; then -1",
    "advanced": "the number of nodes on the path",
    "ended": "true if an `eos` token or the budget ended the row",
}
RETURNED = dict.fromkeys(DECISIONS, DECIDED) | {
    "draft.lookup": {"drafts": "what followed, then -1; the earlier occurrence may overlap the suffix that is looked up"}
}
"""What operations return, where the name is not enough."""
POOL = {
    "states": "the states of all slots",
    "read": "slot that each row reads; negative: the row is padding",
    "write": "slot that each row writes; negative: none",
    "fresh": "rows that start from zeros; their slot is never read",
}


def meaning(operation: str, name: str, value: Any = None) -> str:
    """An argument in words."""
    if getattr(type(value), "__dataclass_fields__", {}).keys() >= STEPPED:
        return STEPS
    return ARGUMENTS_OF.get(operation, {}).get(name, ARGUMENTS.get(name, ""))


def received(specification: Specification, case: Case) -> Iterator[tuple[str, str]]:
    """Every argument of a case: its axes, shape and type, and the numbers of short arrays of integers."""
    arguments = specification.draw(case, NumericContract())
    names, opens = named(case.operation, arguments), opened(case.operation)
    if opens:
        yield "called", f"your function with {', '.join(opens)}; the rest goes to the methods of what it returns"
    expected = specification.expected(arguments, NumericContract(), None)
    state = next((e.axes for e in expected if e.recurrent), "")
    before = None
    for leaf in leaves(case.operation, arguments, {"S": state, "states": state}):
        name, deep = names[leaf.path[0]], len(leaf.path) > 1
        if name != before and deep:
            yield name, meaning(case.operation, name, arguments[leaf.path[0]])
        before = name
        pooled = isinstance(arguments[leaf.path[0]], Pool)
        said = POOL[leaf.name] if pooled else "" if deep else meaning(case.operation, name, arguments[leaf.path[0]])
        yield full_name(leaf, names), "; ".join(part for part in (_shown(leaf), said) if part)


def _shown(leaf: Leaf) -> str:
    """Type and shape of an array, or a value; over several windows those of all."""
    first = leaf.value
    if not isinstance(first, np.ndarray):
        return _each(leaf.values)
    axes = f"({' '.join(leaf.axes)}) " if all(leaf.axes) and leaf.name != "bounds" else ""
    told = f" in each of {len(leaf.values)}" if len(leaf.values) > 1 else ""
    small = first.dtype.kind in "iub" and sum(np.size(value) for value in leaf.values) <= SHOWN
    return f"{first.dtype} {axes}{first.shape}{told}" + (f": {_each(leaf.values)}" if small else "")


def _each(values: tuple[Any, ...]) -> str:
    """The value; those of all windows in turn, or once if they are equal."""
    told = [str(value.tolist() if isinstance(value, np.ndarray) else value) for value in values]
    return told[0] if len(set(told)) == 1 else ", then ".join(told)
