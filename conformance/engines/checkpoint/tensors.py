"""The tensors of a checkpoint, read from safetensors with NumPy only, in float64; bf16 is widened by its bits."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ssmspec_ref.conv import ConvParams
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.norm import Norm
from ssmspec_ref.shapes import Array

from ...errors import ConformanceError

WIDE = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8"}


class NoOracle(ConformanceError):
    """The oracle does not support this model: its family, or a field of its config."""


class Tensors(Mapping[str, Array]):
    """The tensors of a folder in float64. Raises: NoOracle for a file that cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.found: dict[str, Array] = {}
        for path in sorted(folder.glob("*.safetensors")):
            try:
                self._read(path.read_bytes())
            except (OSError, ValueError, KeyError, struct.error) as error:
                raise NoOracle(f"{path} cannot be read: {error}") from error
        if not self.found:
            raise NoOracle(f"{folder} holds no *.safetensors")

    def _read(self, raw: bytes) -> None:
        (length,) = struct.unpack("<Q", raw[:8])
        for name, told in json.loads(raw[8 : 8 + length]).items():
            if name != "__metadata__":
                start, end = (8 + length + at for at in told["data_offsets"])
                self.found[name] = widened(raw[start:end], told["dtype"]).reshape(told["shape"])

    def __getitem__(self, name: str) -> Array:
        if name not in self.found:
            raise NoOracle(f"the checkpoint has no tensor {name}")
        return self.found[name]

    def __iter__(self) -> Any:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def linear(self, name: str) -> Linear:
        return Linear(self[f"{name}.weight"], self.found.get(f"{name}.bias"))

    def conv(self, name: str) -> ConvParams:
        return ConvParams(self[f"{name}.weight"][:, 0], self.found.get(f"{name}.bias"))

    def norm(self, name: str, eps: float, offset: float = 0.0) -> Norm:
        return Norm(self[f"{name}.weight"] + offset, eps)


def widened(raw: bytes, kind: str) -> Array:
    """Numbers of a safetensors type in float64; bf16 is the upper half of an fp32 number."""
    if kind == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    return np.frombuffer(raw, WIDE[kind]).astype(np.float64)
