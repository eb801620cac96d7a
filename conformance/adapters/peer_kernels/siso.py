"""The Triton kernels of Mamba-3 in mamba-ssm: the SISO step, the SISO scan, and the rotation of a step, SISO or MIMO.

What its layer does before a kernel is done here as there, in float32: the norms of B and C, softplus of dt, the floor of A.
The rotation alone is no operation of the suite. Around it the step is completed in float64, so that what fails is the
rotation, its bias or its angle. In the interpreter cos.approx, sin.approx and tanh.approx, which are PTX, are the library's
functions, and tanh is 2 sigmoid(2 x) - 1.
"""

from typing import Any

import numpy as np

from ssmspec_ref.mamba3 import Pieces, finish, packed, pieces_of, skip, values
from ssmspec_ref.shapes import Array

from .sources import Tensors, module

HOME = "mamba_ssm.ops.triton.mamba3"
APPROXIMATE = ("cos_approx", "sin_approx", "tanh_approx")
CHUNK = 16


class Siso:
    """The kernels on one device."""

    def __init__(self, device: str) -> None:
        if device == "cpu":
            from .jitted import bind

            for name in ("mamba3_siso_step", "mamba3_siso_fwd", "angle_dt"):
                bind(f"{HOME}.{name}", *(one for one in APPROXIMATE if hasattr(module(f"{HOME}.{name}"), one)))
        self.tensor = Tensors(device)
        self.torch = self.tensor.torch
        self.one = module(f"{HOME}.mamba3_siso_step").mamba3_siso_step
        combined = module(f"{HOME}.mamba3_siso_combined")
        self.many, self.inner = combined.mamba3_siso_combined, combined._Mamba3Function.apply
        self.turned = module(f"{HOME}.mamba3_mimo_rotary_step").rotary_qk_inference_kernel

    def before(self, token: Any, params: Any) -> tuple[Any, Any, Any, Any]:
        """B and C normed, dt, and A as the layer gives it to a kernel; with or without an axis of tokens."""
        functional = self.torch.nn.functional
        B, C = (self.normed(a, w, params.eps) for a, w in ((token.B, params.B_norm), (token.C, params.C_norm)))
        dt = functional.softplus(self.tensor(token.dt) + self.tensor(params.dt_bias))
        return B, C, dt, (-functional.softplus(self.tensor(token.A))).clamp(max=-params.A_floor)

    def normed(self, x: Array, weight: Array, eps: float) -> Any:
        given = self.tensor(x)
        return given * self.torch.rsqrt(given.square().mean(-1, keepdim=True) + eps) * self.tensor(weight)

    def start(self, S: Array, token: Any, params: Any) -> tuple[Any, ...]:
        """Angle, matrix, key and value of a state."""
        held = pieces_of(S, token.x.shape[-1], token.angle.shape[-1], params)
        return tuple(map(self.tensor, (held.angle, held.S, held.key[:, :, 0], held.value)))

    def left(self, angle: Any, matrix: Any, key: Any, value: Any) -> Array:
        angle, matrix, key, value = self.tensor.back(angle, matrix, key, value)
        return packed(Pieces(matrix, angle, key[:, :, None], value))

    def step(self, S: Array, token: Any, params: Any) -> tuple[Array, Array]:
        B, C, dt, A = self.before(token, params)
        angle = self.tensor(token.angle)[:, None].expand(-1, token.x.shape[1], -1).contiguous()
        y, states = self.one(
            C[:, 0], B[:, 0], self.tensor(token.x), A * dt, dt, self.tensor(token.trap),
            self.tensor(params.C_bias[:, 0]), self.tensor(params.B_bias[:, 0]), angle,
            self.tensor(params.D), self.tensor(token.z), self.start(S, token, params),
        )  # fmt: skip
        return self.tensor.back(y)[0], self.left(*states)

    def scan(self, S: Array, window: Any, params: Any) -> tuple[Array, Array]:
        given, (angle, D, z), held = self.run(S, window, params)
        y, *states = self.many(*given, angle, D, z, held, CHUNK, True)
        return self.tensor.back(y)[0], self.left(*states)

    def scan_repaired(self, S: Array, window: Any, params: Any) -> tuple[Array, Array]:
        """The same with angles that stay in float32."""
        given, rest, held = self.run(S, window, params)
        call: Any = self.uncast
        y, *states = call(*given, *rest, CHUNK, held)
        return self.tensor.back(y)[0], self.left(*states)

    def uncast(
        self, Q: Any, K: Any, V: Any, ADT: Any, DT: Any, Trap: Any, Q_bias: Any, K_bias: Any, Angles: Any, D: Any, Z: Any,
        chunk_size: int, Input_States: Any = None, return_final_states: bool = True, cu_seqlens: Any = None,
    ) -> Any:  # fmt: skip
        """`mamba3_siso_combined` without one cast: angles stay in float32, and so do their sums."""
        Q, K, V, Trap, Z = (None if a is None else a.bfloat16() for a in (Q, K, V, Trap, Z))
        held = (None,) * 4 if Input_States is None else Input_States
        given = (Q, K, V, ADT, DT, Trap, Q_bias, K_bias, Angles, D, Z, *held)
        return self.inner(*given, cu_seqlens, chunk_size, return_final_states)

    def run(self, S: Array, window: Any, params: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
        """The arguments of a scan: inputs and biases; angles, D and z; the state."""
        B, C, dt, A = self.before(window, params)
        angle = self.tensor(window.angle)[:, :, None].expand(-1, -1, window.x.shape[2], -1).contiguous()
        late = [a.transpose(1, 2).contiguous() for a in (A * dt, dt, self.tensor(window.trap))]
        inputs = C[:, :, 0].contiguous(), B[:, :, 0].contiguous(), self.tensor(window.x), *late
        biases = self.tensor(params.C_bias[:, 0]), self.tensor(params.B_bias[:, 0])
        return (*inputs, *biases), (angle, self.tensor(params.D), self.tensor(window.z)), self.start(S, window, params)

    def rotary(self, S: Array, token: Any, params: Any) -> tuple[Array, ...]:
        """A step whose keys, queries and angles are those of the kernel; the rest of it in float64."""
        B, C, dt, A = self.before(token, params)
        (rows, heads), (rank, n), f = token.dt.shape, params.B_bias.shape[1:], token.angle.shape[-1]
        B, C = (a.repeat_interleave(heads // a.shape[2], dim=2).contiguous() for a in (B, C))
        biases = [self.tensor(a).transpose(0, 1).contiguous() for a in (params.C_bias, params.B_bias)]
        held = pieces_of(S, token.x.shape[-1], f, params)
        start, raw = self.tensor(held.angle), self.tensor(token.angle)[:, None].expand(-1, heads, -1).contiguous()
        q, k, angle = self.torch.empty_like(C), self.torch.empty_like(B), self.torch.empty_like(start)
        given = (q, k, angle, C, B, start, raw, dt, *biases)
        self.turned[(heads, rows)](
            *given, heads, n, *(a.stride() for a in given), 2 * f, False, True, True,
            MIMO_DIM=rank, BLOCK_D=n, ROTATE_PAIRWISE=params.pairs == "neighbours",
        )  # fmt: skip
        q64, k64, angle64, dt64, A64 = self.tensor.back(q.transpose(1, 2), k.transpose(1, 2), angle, dt, A)
        share, v = 1 / (1 + np.exp(-token.trap)), values(token.x, params)
        outer = "bh, bhrp, bhrn -> bhpn"
        matrix = held.S + np.einsum(outer, dt64 * (1 - share), values(held.value, params), held.key)
        matrix = np.exp(A64 * dt64)[..., None, None] * matrix + np.einsum(outer, dt64 * share, v, k64)
        y = finish(np.einsum("bhpn, bhrn -> bhrp", matrix, q64) + skip(v, params), token.z, params)
        state = packed(Pieces(matrix, np.mod(angle64, 2 * np.pi), k64, token.x))
        return self.tensor.back(self.tensor(y), self.tensor(state))
