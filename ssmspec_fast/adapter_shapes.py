"""How both adapters bring what the suite hands over into the shapes of windows."""

from typing import Any

import torch
from torch import Tensor


class Wide:
    """A token record, each array with an axis of one token."""

    def __init__(self, token: Any) -> None:
        for name, array in vars(token).items():
            setattr(self, name, None if array is None else array[:, None])


def nearest(ancestors: Tensor) -> Tensor:
    """The parent of every node: -1 at a root, -2 at padding, which does not see itself."""
    nodes = torch.arange(ancestors.shape[2], device=ancestors.device)
    above = torch.where(ancestors & (nodes[:, None] > nodes), nodes, -1).amax(dim=2)
    return torch.where(ancestors.diagonal(dim1=1, dim2=2), above, -2)
