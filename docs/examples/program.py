"""A program that can be tested: one token of SSD, and windows of single tokens, over JSON lines. No torch, no ssmspec.

ssmspec conform run --program "python docs/examples/program.py"
"""

import json
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

# The values of each option that the kernel takes; of an option that is not named it takes all values.
TAKES = {"D": ["off"], "z": ["off"], "dt_bias": ["off"], "softplus": ["on"], "dt_limit": ["off"]}
HAS = {"contract": {"function_ulp": 3}, "limits": {"options": TAKES, "reason": "the kernel has no such option"}}
DECLARED = {
    "name": "my program",
    "version": "0.1",
    "subjects": [{"name": "ssd", "operations": {"ssd.step": HAS, "ssd.buffered_step": HAS}}],
}


def step(S, x, dt, B, C, A):
    """In float32: the inputs come in float64, and are exact in the formats that the contract declares."""
    S, x, dt, B, C, A = (a.astype(np.float32) for a in (S, x, dt, B, C, A))
    B, C = (np.repeat(a, x.shape[1] // a.shape[1], axis=1) for a in (B, C))
    dt = np.logaddexp(np.float32(0), dt)
    S = np.exp(dt * A)[..., None, None] * S + (dt[..., None] * x)[..., None] * B[:, :, None, :]
    return np.einsum("bhpn, bhn -> bhp", S, C), S


class Decoding:
    """A state that single tokens advance."""

    def __init__(self, S, A):
        self.S, self.A = S, A

    def verify(self, given):
        y, self.S = step(self.S, *(given[f"window.{name}"][:, 0] for name in ("x", "dt", "B", "C")), self.A)
        return {"y": y[:, None]}

    def commit(self, given):
        return {}

    def state(self, given):
        return {"S": self.S}


def answer(question, open_ones):
    """The answer to a question: an object, and the tensors to write."""
    given = load_file(question["inputs"]) if "inputs" in question else {}
    match question["do"]:
        case "declare":
            return DECLARED, {}
        case "call":
            token = (given[f"token.{name}"] for name in ("x", "dt", "B", "C"))
            y, S = step(given["S"], *token, given["params.A"])
            return {}, {"y": y, "S": S}
        case "open":
            open_ones.append(Decoding(given["S"], given["params.A"]))
            return {"session": len(open_ones) - 1}, {}
        case "close":
            open_ones[question["session"]] = None
            return {}, {}
        case method:
            return {}, getattr(open_ones[question["session"]], method)(given)


def main():
    open_ones = []
    for line in sys.stdin:
        question = json.loads(line)
        try:
            said, tensors = answer(question, open_ones)
            if tensors:
                save_file({name: np.ascontiguousarray(a) for name, a in tensors.items()}, question["outputs"])
                said = said | {"outputs": list(tensors)}
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
