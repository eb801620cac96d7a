"""A server of states that can be tested: layers of Mamba-2 over JSON lines, in float32. No torch, no ssmspec.

It saves the states of prompts at boundaries, finds them again, forks, and moves states to another server, also to one with
another number of tensor-parallel ranks: ssmspec conform run --program "python docs/examples/states.py"
"""

import json
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

# The values of each option that the layer takes; of an option that is not named it takes all values. `ranks` is only tested
# if it is named.
TAKES = {"kind": ["mamba2"], "D": ["off"], "z": ["off"], "dt_limit": ["off"], "widened": ["off"]}
RANKS = {"ranks": ["one", "one_and_few", "one_and_heads", "few_and_heads"]}
HAS = {"contract": {"function_ulp": 3}, "limits": {"options": TAKES | RANKS, "reason": "the layer has no such option"}}
DECLARED = {"name": "my server", "version": "0.1", "subjects": [{"name": "ssd", "operations": {"life.states": HAS}}]}


class Layer:
    """A layer of Mamba-2 between its projections: a convolution over x | B | C, then the recurrence."""

    def __init__(self, given, values):
        self.A, self.bias = (given[f"mixer.params.{name}"].astype(np.float32) for name in ("A", "dt_bias"))
        self.taps = given["mixer.conv.weight"].astype(np.float32)
        self.shift = given.get("mixer.conv.bias", np.zeros(len(self.taps))).astype(np.float32)
        self.active = values["mixer.conv.activation"]
        self.h, self.g = len(self.A), values["mixer.groups"]
        self.p, self.n = values["mixer.channels"], values["mixer.state"]
        self.parts = (self.h, self.p), (self.g, self.n), (self.g, self.n)  # blocks of x, B and C, and their channels

    def zero(self):
        return np.zeros(self.taps.shape, np.float32), np.zeros((self.h, self.p, self.n), np.float32)

    def step(self, M, S, u, dt):
        """One token: the window and the state after it are new arrays."""
        M = np.concatenate([M[:, 1:], u[:, None]], axis=1)
        c = (M * self.taps).sum(axis=1) + self.shift
        c = c / (1 + np.exp(-c)) if self.active else c
        x, B, C = np.split(c, np.cumsum([count * width for count, width in self.parts])[:-1])
        x, (B, C) = x.reshape(self.h, self.p), (np.repeat(a.reshape(self.g, self.n), self.h // self.g, 0) for a in (B, C))
        dt = np.logaddexp(np.float32(0), dt + self.bias)
        S = np.exp(dt * self.A)[:, None, None] * S + (dt[:, None] * x)[:, :, None] * B[:, None, :]
        return np.einsum("hpn, hn -> hp", S, C), M, S

    def of_rank(self, ranks, rank):
        """The channels of the convolution that a rank holds: of each part its blocks, or one that other ranks have too."""
        held, start = [], 0
        for count, width in self.parts:
            first = rank * count // ranks
            held += range(start + first * width, start + (first + max(1, count // ranks)) * width)
            start += count * width
        return held

    def cut(self, M, S, ranks):
        return np.stack([M[self.of_rank(ranks, rank)] for rank in range(ranks)]), np.stack(np.split(S, ranks))

    def joined(self, M, S):
        whole = np.zeros(self.taps.shape, M.dtype)
        for rank, piece in enumerate(M):
            whole[self.of_rank(len(M), rank)] = piece
        return whole, S.reshape(-1, *S.shape[2:])


class Server:
    """Sequences in slots: the tokens of each, its window and its state. Saved states have all their tokens as a key."""

    def __init__(self, given, values):
        self.layer, self.block, self.ranks = Layer(given, values), values["block"], values.get("ranks", 1)
        self.running, self.saved = {}, {}

    def begin(self, given, slot):
        prompt = tuple(given["tokens"].tolist())
        found = max((n for n in range(len(prompt)) if prompt[:n] in self.saved), default=0)
        self.running[slot] = (prompt[:found], *(self.saved[prompt[:found]] if found else self.layer.zero()))
        return {"found": found}, {}

    def feed(self, given, slot):
        seen, M, S = self.running[slot]
        y = []
        for token, u, dt in zip(given["tokens"].tolist(), given["inputs.pre"][0], given["inputs.gates.dt"][0], strict=True):
            out, M, S = self.layer.step(M, S, u.astype(np.float32), dt.astype(np.float32))
            seen = (*seen, token)
            y.append(out)
            if self.block and len(seen) % self.block == 0:
                self.saved[seen] = M, S
        self.running[slot] = seen, M, S
        return {}, {"y": np.stack(y)[None]}

    def fork(self, given, slot, to):
        self.running[to] = self.running[slot]
        return {}, {}

    def end(self, given, slot):
        del self.running[slot]
        return {}, {}

    def evict(self, given):
        self.saved = {}
        return {}, {}

    def export(self, given, slot):
        seen, M, S = self.running[slot]
        M, S = self.layer.cut(M, S, self.ranks)
        return {}, {"seen": np.array(seen, np.int64), "M": M, "S": S}

    def take(self, given, slot):
        M, S = self.layer.joined(given["M"], given["S"])
        self.running[slot] = tuple(given["seen"].tolist()), M, S
        return {}, {}

    def state(self, given, slot):
        M, S = self.layer.cut(*self.running[slot][1:], self.ranks)
        return {}, {"M": M, "S": S}


def answer(question, servers):
    """The answer to a question: an object, and the tensors to write."""
    given, values = load_file(question["inputs"]) if "inputs" in question else {}, question.get("values", {})
    match question["do"]:
        case "declare":
            return DECLARED, {}
        case "open":
            servers.append(Server(given, values))
            return {"session": len(servers) - 1}, {}
        case "close":
            servers[question["session"]] = None
            return {}, {}
        case method:
            numbers = {name: value for name, value in values.items() if name in ("slot", "to")}
            return getattr(servers[question["session"]], method)(given, **numbers)


def main():
    servers = []
    for line in sys.stdin:
        question = json.loads(line)
        try:
            said, tensors = answer(question, servers)
            if tensors:
                save_file({name: np.ascontiguousarray(a) for name, a in tensors.items()}, question["outputs"])
                said = said | {"outputs": list(tensors)}
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
