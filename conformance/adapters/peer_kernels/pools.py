"""The states of a batch in a pool of slots, as engines store them: rows in descending slots, NaN in every other slot.

Slots below `first` are the implementation's padding; if slot 0 is padding, live slots begin at 1.
"""

from typing import Any

from ssmspec_ref.shapes import Array

from .sources import Tensors


class Pool:
    """Rows in separate slots, `room` slots per row; the first one holds the row's state."""

    def __init__(self, tensor: Tensors, rows: Array, first: int = 0, room: int = 1) -> None:
        torch, count = tensor.torch, len(rows)
        self.tensor = tensor
        used = torch.arange(first, first + 2 * count * room, 2, device=tensor.device)
        self.slots = used.view(count, room).flip(0)
        room_for = (first + 2 * count * room, *rows.shape[1:])
        self.states = torch.full(room_for, float("nan"), device=tensor.device, dtype=tensor.state)
        self.states[self.slots[:, 0]] = tensor.held(rows)

    @property
    def index(self) -> Any:
        """The first slot of each row, as a tensor for kernels."""
        return self.slots[:, 0].int().contiguous()

    @property
    def table(self) -> Any:
        """The slots of each row, as a tensor for kernels."""
        return self.slots.int().contiguous()

    def rows(self) -> Any:
        """The states in the first slot of each row."""
        return self.states[self.slots[:, 0]]

    def at(self, column: Any) -> Any:
        """The states in slot number `column` of each row."""
        return self.states[self.slots.gather(1, column[:, None].long())[:, 0]]


def turned(S: Array) -> Array:
    """A state of the delta rule transposed to (value, key), or back."""
    return S.swapaxes(-1, -2)


def flat(a: Any) -> Any:
    """A batch of windows as one packed run of tokens."""
    return None if a is None else a.flatten(0, 1)


def ends(tensor: Tensors, rows: int, tokens: int) -> Any:
    """The cumulative lengths of rows of equal length in a packed run."""
    return tensor.torch.arange(0, rows * tokens + 1, tokens, device=tensor.device, dtype=tensor.torch.int32)


def by_head(kernels: Tensors, params: Any, p: int, n: int) -> dict[str, Any]:
    """A, D and the bias of dt per channel, expanded with strides of 0, as a Mamba-2 layer passes them."""
    A, D, bias = kernels(params.A), kernels(params.D), kernels(params.dt_bias)
    h = len(A)
    return {
        "A": A[:, None, None].expand(h, p, n),
        "D": D if D is None or D.dim() == 2 else D[:, None].expand(h, p),
        "dt_bias": None if bias is None else bias[:, None].expand(h, p),
    }


def widened(M: Any, u: Any) -> Any:
    """The last w inputs (.., c, w) after those of u (.., c, t)."""
    return M if u.shape[-1] == 0 else _joined(M, u)[..., -M.shape[-1] :]


def with_oldest(M: Any, u: Any, kept: Any) -> Any:
    """The window after u: its oldest input, which the kernel does not keep, and the w - 1 inputs that it does."""
    return _joined(widened(M, u)[..., :1], kept)


def _joined(left: Any, right: Any) -> Any:
    import torch

    return torch.cat([left, right], dim=-1)
