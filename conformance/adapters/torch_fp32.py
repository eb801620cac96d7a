"""The recurrences rewritten in torch, token by token, in float32, from the papers' formulas and not from the reference.

Two contracts: everything in float32; and the state stored in bf16 after every token, as in engines with a bf16 cache.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ssmspec_ref.contract import Capability, NumericContract, Subject
from ssmspec_ref.options.extras import installing
from ssmspec_ref.shapes import Array

from .peer_kernels.sources import one

FP32 = NumericContract()
BF16_STATE = NumericContract(state="bf16", stored_every_token=True)
ABSENT = f"torch is not installed; {installing('torch')}"


def subjects(device: str) -> tuple[Subject, ...]:
    """The torch version under its two contracts; without torch, the reason."""
    if find_spec("torch") is None:
        return (Subject("torch", {}, absent={"": ABSENT}),)
    made = []
    for contract in (FP32, BF16_STATE):
        kernels = Kernels(device, contract.state)
        named: dict[str, Callable[..., Any]] = {
            "ssd.step": one(kernels.ssd),
            "ssd.scan": kernels.ssd,
            "ssd.scan_masked": kernels.ssd,
            "selective.step": one(kernels.selective),
            "selective.scan": kernels.selective,
            "selective.scan_masked": kernels.selective,
            "delta.step": one(kernels.delta),
            "delta.scan": kernels.delta,
            "delta.scan_masked": kernels.delta,
        }
        if contract is FP32:
            named |= {"conv.step": one_input(kernels.conv), "conv.scan": kernels.conv, "conv.commit": kernels.commit}
        capabilities = {name: Capability(run, contract) for name, run in named.items()}
        made.append(Subject("torch", capabilities, absent={"": "not rewritten in torch"}))
    return tuple(made)


def one_input(scan: Callable[..., Any]) -> Callable[..., Any]:
    def step(M: Array, u: Array, params: Any) -> tuple[Array, Array]:
        y, M_next = scan(M, u[:, None], params)
        return y[:, 0], M_next

    return step


class Kernels:
    """The operations on one device, with the state stored in one format."""

    def __init__(self, device: str, state: str) -> None:
        import torch

        self.torch, self.device, self.low = torch, device, state == "bf16"

    def tensor(self, array: Array | None) -> Any:
        return None if array is None else self.torch.tensor(array, dtype=self.torch.float32, device=self.device)

    def keep(self, S: Any) -> Any:
        """The state as it is stored between tokens."""
        return S.to(self.torch.bfloat16).float() if self.low else S

    def back(self, *tensors: Any) -> tuple[Array, ...]:
        return tuple(t.cpu().numpy() for t in tensors)

    def alive(self, live: Array | None, shape: tuple[int, int]) -> Any:
        mask = self.torch.ones(shape, dtype=self.torch.bool) if live is None else self.torch.tensor(live)
        return mask.to(self.device)

    def conv(self, M: Array, u: Array, params: Any) -> tuple[Array, ...]:
        """torch's own grouped convolution over the old window and the new inputs."""
        functional = self.torch.nn.functional
        ext = self.torch.cat([self.tensor(M), self.tensor(u).transpose(1, 2)], dim=2)
        y = functional.conv1d(
            ext[:, :, 1:], self.tensor(params.weight)[:, None], self.tensor(params.bias), groups=ext.shape[1]
        )
        y = functional.silu(y) if params.activation else y
        return self.back(y.transpose(1, 2).contiguous(), ext[:, :, -M.shape[2] :].contiguous())

    def commit(self, M: Array, u: Array, advanced: Array) -> Array:
        rows = [
            self.torch.cat([m, row[:count].T], dim=1)[:, -M.shape[2] :] for m, row, count in self._committed(M, u, advanced)
        ]
        return self.back(self.torch.stack(rows))[0]

    def _committed(self, M: Array, u: Array, advanced: Array) -> Any:
        return zip(self.tensor(M), self.tensor(u), (int(a) for a in advanced), strict=True)

    def ssd(self, S: Array, window: Any, params: Any, live: Array | None = None) -> tuple[Array, ...]:
        x, z = self.tensor(window.x), self.tensor(window.z)
        b, t, h, _ = x.shape
        dt = self.tensor(window.dt)
        dt = dt if params.dt_bias is None else dt + self.tensor(params.dt_bias)
        dt = self.torch.nn.functional.softplus(dt) if params.dt_softplus else dt
        dt = dt.clamp(*params.dt_limit)
        B, C = (self.tensor(a).repeat_interleave(h // a.shape[2], dim=2) for a in (window.B, window.C))
        decay, alive, state, outputs = (dt * self.tensor(params.A)).exp(), self.alive(live, (b, t)), self.tensor(S), []
        for i in range(t):
            update = (dt[:, i, :, None] * x[:, i])[..., None] * B[:, i, :, None]
            moved = self.keep(decay[:, i, :, None, None] * state + update)
            state = self.torch.where(alive[:, i, None, None, None], moved, state)
            outputs.append((moved * C[:, i, :, None]).sum(-1))
        y = self.torch.stack(outputs, dim=1)
        if params.D is not None:
            D = self.tensor(params.D)
            y = y + (D[:, None] if D.dim() == 1 else D) * x
        return self.back(y if z is None else y * self.torch.nn.functional.silu(z), state)

    def selective(self, S: Array, window: Any, params: Any, live: Array | None = None) -> tuple[Array, ...]:
        x, z, dt = self.tensor(window.x), self.tensor(window.z), self.tensor(window.dt)
        dt = dt if params.dt_bias is None else dt + self.tensor(params.dt_bias)
        dt = self.torch.nn.functional.softplus(dt) if params.dt_softplus else dt
        B, C, A = self.tensor(window.B), self.tensor(window.C), self.tensor(params.A)
        alive, state, outputs = self.alive(live, tuple(x.shape[:2])), self.tensor(S), []
        for i in range(x.shape[1]):
            update = (dt[:, i] * x[:, i])[..., None] * B[:, i, None]
            moved = self.keep((dt[:, i, :, None] * A).exp() * state + update)
            state = self.torch.where(alive[:, i, None, None], moved, state)
            outputs.append((moved * C[:, i, None]).sum(-1))
        y = self.torch.stack(outputs, dim=1)
        y = y if params.D is None else y + self.tensor(params.D) * x
        return self.back(y if z is None else y * self.torch.nn.functional.silu(z), state)

    def delta(self, S: Array, window: Any, params: Any, live: Array | None = None) -> tuple[Array, ...]:
        q, k, v = self.tensor(window.q), self.tensor(window.k), self.tensor(window.v)
        each = v.shape[2] // q.shape[2]
        if params.l2_norm:
            q, k = (a * ((a * a).sum(-1, keepdim=True) + params.eps).rsqrt() for a in (q, k))
        scale = q.shape[-1] ** -0.5 if params.scale is None else params.scale
        q, k = (a.repeat_interleave(each, dim=2) for a in (q * scale, k))
        decay, beta = self.tensor(window.g).exp(), self.tensor(window.beta)
        decay = decay[..., None] if decay.dim() == 3 else decay
        alive, state, outputs = self.alive(live, tuple(v.shape[:2])), self.tensor(S), []
        for i in range(v.shape[1]):
            old = decay[:, i, :, :, None] * state
            read = (old * k[:, i, :, :, None]).sum(2)
            write = beta[:, i, :, None] * (v[:, i] - read)
            moved = self.keep(old + k[:, i, :, :, None] * write[:, :, None])
            state = self.torch.where(alive[:, i, None, None, None], moved, state)
            outputs.append((moved * q[:, i, :, :, None]).sum(2))
        return self.back(self.torch.stack(outputs, dim=1), state)
