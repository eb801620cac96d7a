"""Kernels with the interfaces of vLLM and SGLang, computed by the reference: right, or wrong in one named way.

They stand where the adapters put the peers' own, so that pools, tables, links and commits are judged without any wheel.
"""

from typing import Any

import torch

from conformance.adapters import sglang, vllm
from conformance.adapters.peer_kernels.pools import Pool
from conformance.adapters.peer_kernels.sources import Tensors
from ssmspec_ref import conv, ssd
from ssmspec_ref.conv import ConvParams


def stepped(state: Any, window: Any, row: int, t: int, params: Any) -> tuple[Any, Any]:
    """One token of one row from a state in float32: its output, and the state as it is stored."""
    token = window.token(t)
    one = type(token)(**{name: None if a is None else a[row : row + 1] for name, a in vars(token).items()})
    y, after = ssd.step(state.double().numpy()[None], one, params)
    return torch.tensor(y[0]).float(), torch.tensor(after[0]).float()


def read(window: Any, u: Any, rest: dict[str, Any]) -> Any:
    """One output of the convolution, from the w - 1 inputs before it."""
    bias = None if rest["bias"] is None else rest["bias"].double().numpy()
    params = ConvParams(rest["weight"].double().numpy(), bias, rest["activation"] is not None)
    M = torch.cat([torch.zeros_like(u)[:, None], window], dim=1).double().numpy()[None]
    return torch.tensor(conv.step(M, u.double().numpy()[None], params)[0][0]).float()


class VLLM(vllm.Kernels):
    """`fault`: "first" reads the first slot always, "last" keeps the last state only, "shift" a window too early;
    "unfolded" leaves the checkpoint as it is, "undecayed" adds what the ring holds as it came."""

    def __init__(self, fault: str = "") -> None:
        self.tensor, self.fault = Tensors("cpu"), fault

    def ssd_window(self, pool: Pool, accepted: Any, window: Any, params: Any) -> Any:
        y = torch.zeros(window.x.shape)
        for row, slots in enumerate(pool.slots):
            state = pool.states[slots[0 if self.fault == "first" else accepted[row] - 1]]
            for t in range(window.x.shape[1]):
                y[row, t], state = stepped(state, window, row, t, params)
                if self.fault != "last" or t == window.x.shape[1] - 1:
                    pool.states[slots[t]] = state
        return y

    def conv_update(self, x: Any, states: Any, **given: Any) -> Any:
        """Windows behind each other; a slot keeps w - 1 inputs and those of the window but its last accepted ones."""
        out, bounds, kept = given["out"], given["query_start_loc"].tolist(), given["weight"].shape[1] - 1
        for row, slot in enumerate(given["conv_state_indices"]):
            begin = int(given["num_accepted_tokens"][row]) - 1
            begin -= self.fault == "shift" and begin > 0
            seen = [states[slot, :, begin : begin + kept], x[bounds[row] : bounds[row + 1]].T]
            run = torch.cat(seen, dim=1)
            for t in range(run.shape[1] - kept):
                out[bounds[row] + t] = read(run[:, t : t + kept], run[:, t + kept], given)
            states[slot, :, : run.shape[1] - 1] = run[:, 1:]
        return out

    def replay(self, state: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, out: Any, **given: Any) -> Any:
        """Every row from its checkpoint, what its ring holds, and one token more."""
        step = dt[..., 0].double() + (0 if given["dt_bias"] is None else given["dt_bias"][:, 0])
        step = torch.nn.functional.softplus(step) if given["dt_softplus"] else step
        shared = x.shape[1] // B.shape[1]
        B, C = (a.double().repeat_interleave(shared, dim=1) for a in (B, C))
        held_B = given["B_cache"].repeat_interleave(shared, dim=1)
        for row, slot in enumerate(given["state_batch_indices"]):
            S, count = state[slot].double(), int(given["write_pos"][row])
            ring = [(given["dt_cache"][slot, :, i], given["x_cache"][slot, :, i], held_B[slot, :, i]) for i in range(count)]
            for taken, value, key in [*ring, (step[row], x[row], B[row])]:
                decay = 0 if self.fault == "undecayed" and count > 1 else taken * A[:, 0, 0]
                S = torch.exp(torch.as_tensor(decay).double()).reshape(-1, 1, 1) * S
                S = S + (taken[:, None] * value)[..., None] * key[:, None]
            y = (S * C[row, :, None]).sum(-1) + (0 if given["D"] is None else given["D"] * x[row])
            out[row] = y if given["z"] is None else y * torch.nn.functional.silu(given["z"][row].double())
            if not given["is_flush"][row]:
                given["dt_cache"][slot, :, count], given["x_cache"][slot, :, count] = step[row], x[row]
                given["B_cache"][slot, :, count] = B[row, ::shared]
            elif self.fault != "unfolded":
                state[slot] = S
        return out


class SGLang(sglang.Kernels):
    """`fault`: "chain" takes the node before for the parent, "root" the root, "window" keeps a node's window without it."""

    def __init__(self, fault: str = "", activations: str = "fp32", state: str = "fp32") -> None:
        self.tensor, self.fault = Tensors("cpu", activations, state), fault

    def ssd(self, pool: Pool, window: Any, params: Any, **more: Any) -> Any:
        y, parents = torch.zeros(window.x.shape, dtype=self.tensor.form), more["retrieve_parent_token"]
        for row in range(len(pool.slots)):
            buffer = more["intermediate_states_buffer"][row]
            for t in range(window.x.shape[1]):
                parent = t - 1 if parents is None or self.fault == "chain" else parents[row, t]
                parent = 0 if self.fault == "root" and parents is not None else parent
                state = buffer[parent] if t else pool.states[pool.slots[row, 0]]
                y[row, t], buffer[t] = stepped(state, window, row, t, params)
        return y

    def conv_update(self, x: Any, states: Any, **given: Any) -> Any:
        """A node's inputs lie along the parents that first children and next siblings tell."""
        y = torch.zeros_like(x)
        for row, slot in enumerate(given["conv_state_indices"]):
            before, parents = states[slot].clone(), self.parents(row, x.shape[2], given)
            windows = given["intermediate_conv_window"][row]
            for t in range(x.shape[2]):
                held = windows[parents[t]] if t else before
                y[row, :, t] = read(held, x[row, :, t], given)
                behind = torch.cat([held, x[row, :, t, None]], dim=1)[:, 1:]
                windows[t] = held if self.fault == "window" else behind
            states[slot] = torch.cat([before, x[row]], dim=1)[:, -before.shape[1] :]
        return y

    def parents(self, row: int, nodes: int, given: dict[str, Any]) -> list[int]:
        if "retrieve_next_token" not in given:
            return list(range(-1, nodes - 1))
        found = given["retrieve_parent_token"]
        found[row] = 0
        for t in range(nodes):
            child, sibling = given["retrieve_next_token"][row, t], given["retrieve_next_sibling"][row, t]
            if child >= 0:
                found[row, child] = t
            if sibling >= 0:
                found[row, sibling] = found[row, t]
        return [int(parent) for parent in found[row]]
