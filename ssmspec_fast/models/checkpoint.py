"""A Hugging Face folder: its config, and its tensors in safetensors files, with names and sizes known before one is read.

A family describes its tensors once, by taking them from a source. A `Plan` as the source only records the requests, which
gives names, shapes and bytes; the files as the source give the model. Nothing in a folder is executed: no pickle, no code of
the folder, whatever `auto_map` says.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import BrokenFile, MemoryRefused, MissingTensor, TensorMismatch, UnknownTensor, UnsafeFile
from ..families import Family, find
from ..families.source import Plan, Source
from .config import ModelConfig
from .model import Model

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
STORAGE = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
JSON_LIMIT, TOKENIZER_LIMIT = 8 * 2**20, 128 * 2**20
"""Most bytes of a config or an index, and of a tokenizer."""
NAME_LIMIT = 255
"""Most letters of a file name."""


@dataclass(frozen=True)
class Stored:
    """A tensor of a file, as its header describes it."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Checkpoint:
    """A folder whose config and headers match; no tensor has been read."""

    folder: Path
    config: ModelConfig
    family: Family
    tensors: dict[str, Stored]

    def dtype(self) -> torch.dtype:
        """The type that the weights are stored in: the config's, or the one with the most bytes."""
        if self.config.storage in STORAGE:
            return STORAGE[self.config.storage]
        sizes: dict[torch.dtype, int] = {}
        for stored in self.tensors.values():
            sizes[stored.dtype] = sizes.get(stored.dtype, 0) + bytes_of(stored.shape, stored.dtype)
        return max(sizes, key=lambda dtype: sizes[dtype])

    def peak_bytes(self, dtype: torch.dtype) -> int:
        """The most bytes that loading takes at any moment: the model, and one tensor both as stored and as converted.

        Units: bytes.
        """
        plan = Plan(dtype)
        self.family.assemble(self.config, plan)
        largest = max(bytes_of(s.shape, s.dtype) + 2 * bytes_of(s.shape, torch.float32) for s in self.tensors.values())
        return plan.bytes + largest

    def load(self, dtype: torch.dtype | None = None, device: torch.device | str = "cpu", memory: int | None = None) -> Model:
        """The model, its weights in `dtype` (None: as stored).

        Units: `memory` is the most bytes that loading may take.
        Raises: MemoryRefused, before a tensor is read.
        """
        dtype = self.dtype() if dtype is None else dtype
        peak = self.peak_bytes(dtype)
        if memory is not None and peak > memory:
            raise MemoryRefused(
                f"loading {self.folder} takes {peak:,} bytes at its peak, but the limit is {memory:,}; "
                "load it in a smaller type, or raise the limit"
            )
        return self.family.assemble(self.config, Files(self.tensors, dtype, torch.device(device)))


class Files(Source):
    """Reads the tensors from the files of a folder, one at a time."""

    def __init__(self, tensors: dict[str, Stored], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(dtype)
        self.tensors, self.device = tensors, device
        self.open: dict[Path, Any] = {}

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        from safetensors import safe_open

        file = self.tensors[name].file
        if file not in self.open:
            self.open[file] = safe_open(str(file), framework="pt", device="cpu")
        return self.open[file].get_tensor(name).to(device=self.device, dtype=dtype)


def open_checkpoint(folder: str | Path, accept: Iterable[str] = ()) -> Checkpoint:
    """Opens and checks a folder: its family is supported, and its tensors are those that the config implies. Unknown fields
    of the config are refused, except those named in `accept`.

    Raises: ConfigRefused, UnsafeFile, BrokenFile, MissingTensor, UnknownTensor, TensorMismatch.
    """
    folder = Path(folder)
    data = read_json(folder / "config.json")
    extra = folder / "mamba_config.json"
    family, config = find(data, read_json(extra) if extra.exists() else None, accept)
    tensors = {name: stored for file in weight_files(folder) for name, stored in headers(file)}
    checkpoint = Checkpoint(folder, config, family, tensors)
    check_tensors(checkpoint)
    return checkpoint


def load(
    folder: str | Path,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    memory: int | None = None,
    accept: Iterable[str] = (),
) -> Model:
    """The model of a folder. Raises: as `open_checkpoint`, and MemoryRefused."""
    return open_checkpoint(folder, accept).load(dtype, device, memory)


def read_json(file: Path, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """Raises: BrokenFile for a file that is missing, too large, or not a JSON object."""
    if not file.is_file():
        raise BrokenFile(f"{file} is missing; give a folder in Hugging Face format")
    if file.stat().st_size > limit:
        raise BrokenFile(f"{file} has {file.stat().st_size:,} bytes; the limit is {limit:,}")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BrokenFile(f"{file} is not JSON: {error}; download it again") from error
    except OSError as error:
        raise BrokenFile(f"{file} cannot be read: {error.strerror}") from error
    if not isinstance(data, dict):
        raise BrokenFile(f"{file} holds a {type(data).__name__}, not an object; download it again")
    return data


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: the single one, or those in the index.

    Raises: UnsafeFile if there are only other formats, BrokenFile if there are none, or an index names one outside.
    """
    if (folder / INDEX).exists():
        named = read_json(folder / INDEX).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
            raise BrokenFile(f"{folder / INDEX} has no weight_map from tensors to files; download it again")
        files = sorted(set(named.values()))
        outside = [name for name in files if Path(name).name != name or len(name) > NAME_LIMIT]
        if outside:
            raise BrokenFile(
                f"{folder / INDEX} names {outside[0]!r}, which is not in the folder; a shard is a plain file name"
            )
        missing = [name for name in files if not (folder / name).is_file()]
        if missing:
            raise BrokenFile(f"{folder} lacks {', '.join(missing)}, which its index names; download them")
        return [folder / name for name in files]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    others = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for file in folder.glob(pattern))
    if others:
        raise UnsafeFile(f"{folder} has only {', '.join(others)}, which can run code when loaded; convert it to {SINGLE}")
    raise BrokenFile(f"{folder} has neither {SINGLE} nor {INDEX}; give a folder in Hugging Face format")


def headers(file: Path) -> Iterator[tuple[str, Stored]]:
    """Name, shape and type of every tensor of a file, from its header.

    Raises: BrokenFile, UnsafeFile (not a safetensors file), TensorMismatch (a type that is not floating point).
    """
    from safetensors import SafetensorError, safe_open

    if file.suffix != ".safetensors":
        raise UnsafeFile(f"{file} is not named as a safetensors file; only those are read")
    try:
        with safe_open(str(file), framework="pt", device="cpu") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                part = opened.get_slice(name)
                if part.get_dtype() not in DTYPES:
                    raise TensorMismatch(f"tensor {name} is stored as {part.get_dtype()}; supported: {', '.join(DTYPES)}")
                yield name, Stored(file, tuple(part.get_shape()), DTYPES[part.get_dtype()])
    except SafetensorError as error:
        raise BrokenFile(f"{file} is truncated or not a safetensors file: {error}; download it again") from error


def check_tensors(checkpoint: Checkpoint) -> None:
    """Raises MissingTensor, UnknownTensor or TensorMismatch unless the files hold exactly what the config implies."""
    plan = Plan(torch.float32)
    checkpoint.family.assemble(checkpoint.config, plan)
    held, family = checkpoint.tensors, checkpoint.config.family
    missing = sorted(set(plan.shapes) - set(held))
    if missing:
        raise MissingTensor(f"{family}: {checkpoint.folder} lacks {listed(missing)}, which its config implies")
    unknown = sorted(name for name in set(held) - set(plan.shapes) if not plan.ignores(name))
    if unknown:
        raise UnknownTensor(f"{family}: {checkpoint.folder} holds {listed(unknown)}, which its config does not imply")
    for name, shape in plan.shapes.items():
        if held[name].shape != shape:
            raise TensorMismatch(
                f"{family}: tensor {name} has shape {held[name].shape}, but the config implies {shape}; "
                "the config and the weights are from different models"
            )


def listed(names: list[str], most: int = 4) -> str:
    """The first names, and how many more."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def bytes_of(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    count = 1
    for size in shape:
        count *= size
    return count * dtype.itemsize
