"""A Hugging Face folder: its config, and its tensors in safetensors files, named and sized before one is read.

A family describes its tensors once, by taking them from a source. Taken from a `Plan`, which only writes down what is
asked for, they give the names, the shapes and the bytes; taken from the files, the model. Nothing in a folder is executed: no
pickle, no code of the folder, whatever `auto_map` says.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .config import ModelConfig
from .errors import BrokenFile, MemoryRefused, MissingTensor, TensorMismatch, UnknownTensor, UnsafeFile
from .families import Family, find
from .families.source import Plan, Source
from .model import Model

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
STORAGE = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
JSON_LIMIT = 64 * 2**20


@dataclass(frozen=True)
class Stored:
    """A tensor of a file, as its header describes it."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Checkpoint:
    """A folder whose config and headers fit each other; no tensor has been read."""

    folder: Path
    config: ModelConfig
    family: Family
    tensors: dict[str, Stored]

    def dtype(self) -> torch.dtype:
        """The type that the weights are stored in: the config's, or that of most bytes."""
        if self.config.storage in STORAGE:
            return STORAGE[self.config.storage]
        sizes: dict[torch.dtype, int] = {}
        for stored in self.tensors.values():
            sizes[stored.dtype] = sizes.get(stored.dtype, 0) + bytes_of(stored.shape, stored.dtype)
        return max(sizes, key=lambda dtype: sizes[dtype])

    def peak_bytes(self, dtype: torch.dtype) -> int:
        """The most that loading takes at once: the model, and one tensor as the file has it and as it becomes.

        Units: bytes.
        """
        plan = Plan(dtype)
        self.family.assemble(self.config, plan)
        largest = max(bytes_of(s.shape, s.dtype) + 2 * bytes_of(s.shape, torch.float32) for s in self.tensors.values())
        return plan.bytes + largest

    def load(self, dtype: torch.dtype | None = None, device: torch.device | str = "cpu", memory: int | None = None) -> Model:
        """The model, its weights in `dtype` (None: as stored).

        Units: `memory` is the bytes that loading may take.
        Raises: MemoryRefused, before a tensor is read.
        """
        dtype = self.dtype() if dtype is None else dtype
        peak = self.peak_bytes(dtype)
        if memory is not None and peak > memory:
            raise MemoryRefused(
                f"loading {self.folder} takes {peak:,} bytes at its peak, but {memory:,} are allowed; "
                "load it in a smaller type, or allow more"
            )
        return self.family.assemble(self.config, Files(self.tensors, dtype, torch.device(device)))


class Files(Source):
    """Tensors out of the files of a folder, one at a time."""

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


def open_checkpoint(folder: str | Path) -> Checkpoint:
    """A folder, checked: its config is of a family that is supported, and its tensors are those that the config implies.

    Raises: ConfigRefused, UnsafeFile, BrokenFile, MissingTensor, UnknownTensor, TensorMismatch.
    """
    folder = Path(folder)
    data = read_json(folder / "config.json")
    extra = folder / "mamba_config.json"
    family, config = find(data, read_json(extra) if extra.exists() else None)
    tensors = {name: stored for file in weight_files(folder) for name, stored in headers(file)}
    checkpoint = Checkpoint(folder, config, family, tensors)
    check_tensors(checkpoint)
    return checkpoint


def load(
    folder: str | Path,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    memory: int | None = None,
) -> Model:
    """The model of a folder. Raises: as `open_checkpoint`, and MemoryRefused."""
    return open_checkpoint(folder).load(dtype, device, memory)


def read_json(file: Path) -> dict[str, Any]:
    """Raises: BrokenFile for a file that is missing, very large, or no JSON object."""
    if not file.is_file():
        raise BrokenFile(f"{file} is missing; give a folder in Hugging Face format")
    if file.stat().st_size > JSON_LIMIT:
        raise BrokenFile(f"{file} has {file.stat().st_size:,} bytes; a config or index has at most {JSON_LIMIT:,}")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BrokenFile(f"{file} is no JSON: {error}; download it again") from error
    if not isinstance(data, dict):
        raise BrokenFile(f"{file} holds a {type(data).__name__}, not an object; download it again")
    return data


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: the one, or those of the index.

    Raises: UnsafeFile where there are only others, BrokenFile where there are none, or an index names one elsewhere.
    """
    if (folder / INDEX).exists():
        named = read_json(folder / INDEX).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
            raise BrokenFile(f"{folder / INDEX} has no weight_map from tensors to files; download it again")
        files = sorted(set(named.values()))
        outside = [name for name in files if Path(name).name != name]
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
        raise UnsafeFile(f"{folder} holds {', '.join(others)}, which can run code when read; convert it to {SINGLE}")
    raise BrokenFile(f"{folder} holds neither {SINGLE} nor {INDEX}; give a folder in Hugging Face format")


def headers(file: Path) -> Iterator[tuple[str, Stored]]:
    """Name, shape and type of every tensor of a file, from its header.

    Raises: BrokenFile, UnsafeFile (what is no safetensors inside), TensorMismatch (a type that is no float).
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
        raise BrokenFile(f"{file} is cut short or no safetensors file: {error}; download it again") from error


def check_tensors(checkpoint: Checkpoint) -> None:
    """Raise MissingTensor, UnknownTensor or TensorMismatch unless the files hold what the config implies, and no more."""
    plan = Plan(torch.float32)
    checkpoint.family.assemble(checkpoint.config, plan)
    held, family = checkpoint.tensors, checkpoint.config.family
    missing = sorted(set(plan.shapes) - set(held))
    if missing:
        raise MissingTensor(f"{family}: {checkpoint.folder} lacks {listed(missing)}; its config implies them")
    unknown = sorted(name for name in set(held) - set(plan.shapes) if not plan.ignores(name))
    if unknown:
        raise UnknownTensor(f"{family}: {checkpoint.folder} holds {listed(unknown)}, which its config does not imply")
    for name, shape in plan.shapes.items():
        if held[name].shape != shape:
            raise TensorMismatch(
                f"{family}: tensor {name} has shape {held[name].shape}, but the config implies {shape}; "
                "the config and the weights are of two models"
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
