"""A launch as text: all that the compiler and the GPU are given.

    code       Triton IR after the passes on it, with numbers for names; the options of the compiler, libraries by content (1)
    settings   those of Triton that change code, and the versions of Triton and ptxas                                     (2)
    launch     grid; of each argument its value, or of a tensor its memory, shape, strides and type                       (3)

Constants are in the IR, and so is all that a function on the device calls. The rest of the compiler is a function of (1)
and (2).
"""

import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import triton
from torch import Tensor
from triton import knobs
from triton.language import constexpr

from ..static.capture import Launch, build, compiler_input, given, leaves, optimised_ir
from .texts import digest

FUNCTION = re.compile(r"tt\.func (?:\w+ )?@([\w.$-]+|\"[^\"]*\")")
CONSTANT = re.compile(r"^ *(%[\w.$-]+) = arith\.constant (.*)\n", re.MULTILINE)
"""In the order in which functions were inlined."""
VALUE = re.compile(r"%[\w.$-]+")
SECTION = re.compile(r"^//-{20,} \.(\S+)", re.MULTILINE)
"""The head of a section in nvdisasm's output."""
DEBUG = ("debug", "nv_debug", "rel.debug", "rel.nv_debug", "rela.debug")
OF_THE_LAUNCH = ("num_warps", "num_ctas", "shared", "launch_pdl", "launch_cooperative_grid", "global_scratch_size")
SETTINGS = ("compilation", "language", "nvidia")
NO_CODE = {
    *(
        "always_compile",
        "dump_ir",
        "dump_ir_extract_di_local_variables",
        "front_end_debugging",
        "store_binary_only",
        "use_ir_loc",
    ),
    *("dump_nvptx", "dump_ptxas_log", "cuobjdump", "nvdisasm", "ptxas", "ptxas_blackwell", "libcuda_path", "libdevice_path"),
}
"""Settings of what is printed or kept, and where tools are; the version of ptxas and the libraries' content are told."""


class Tensors:
    """Numbers for the memory of tensors, in the order in which it is met; two views of one memory have the same number."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.kept: list[Tensor] = []  # an address is that of one memory only while the memory lives

    def told(self, tensor: Tensor) -> str:
        self.kept.append(tensor)
        number = self.numbers.setdefault(tensor.untyped_storage()._cdata, len(self.numbers))
        return f"{number}: {tuple(tensor.shape)} {tensor.stride()} {tensor.dtype} {tensor.storage_offset()}"


def described(launch: Launch, told: Callable[[Tensor], str]) -> str:
    """(3). A None is left out: it reaches neither the compiler nor the GPU."""
    constants = {p.name for p in launch.kernel.params if p.is_constexpr}
    values = [v for name, value in given(launch).items() if name not in constants for _, v in leaves(name, value)]
    plain = (v for v in values if v is not None and not isinstance(v, constexpr))
    return f"grid {launch.grid}, given {[told(v) if isinstance(v, Tensor) else repr(v) for v in plain]}"


def compiled_from(launch: Launch, capability: int) -> tuple[object, ...]:
    """What tells the compiler's input: the source of a launch, its types, constants and options."""
    held = compiler_input(launch, capability)
    return held.source.hash(), capability, options(held.options)


@dataclass
class Codes:
    """Digests of (1) and (2) by what they are made from, also in a folder, so that only what changed is made again."""

    make: Callable[[Launch, int], str]
    folder: Path | None = None
    made_from: Callable[[Launch, int], tuple[object, ...]] = compiled_from
    known: dict[str, str] = field(default_factory=dict)

    def __call__(self, launch: Launch, capability: int) -> str:
        key = digest(repr((self.make.__name__, settings(), *self.made_from(launch, capability))))
        file = self.folder and self.folder / key
        if key not in self.known:
            self.known[key] = file.read_text() if file and file.exists() else self.make(launch, capability)
            if file and not file.exists():
                part = file.with_suffix(f".{os.getpid()}")
                part.write_text(self.known[key])
                part.replace(file)
        return self.known[key]


def ir(launch: Launch, capability: int) -> str:
    """A digest of (1)."""
    text, told = optimised_ir(launch, capability)
    return digest(f"{unnamed(text)}\n{options(told)}\n{settings()}")


def machine_code(launch: Launch, capability: int) -> str:
    """A digest of the machine code, with what the loader reads of it; without names, lines and debug information.

    It is compiled without lines: with them the compiler keeps apart some instructions that are alike but for their lines, so
    that a comment could change the code.
    """
    with knobs.compilation.scope():
        knobs.compilation.disable_line_info = True
        compiled = build(launch, capability).compiled
    held = {name: getattr(compiled.metadata, name) for name in OF_THE_LAUNCH}
    return digest(f"{plain(disassembled(compiled.asm['cubin']), launch.name)}\n{held}")


def disassembled(cubin: bytes) -> str:
    """What nvdisasm prints of a compiled kernel."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [knobs.nvidia.nvdisasm.path, str(file)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def plain(disassembly: str, name: str) -> str:
    """nvdisasm's output for a kernel, without its name and the sections for debuggers."""
    starts = [match.start() for match in SECTION.finditer(disassembly)]
    sections = (disassembly[a:b] for a, b in zip(starts, [*starts[1:], len(disassembly)], strict=True))
    kept = [s for s in sections if not SECTION.match(s)[1].startswith(DEBUG)]  # type: ignore[index]
    if not any(".text." in section for section in kept):
        raise RuntimeError(f"nvdisasm printed no code of {name}")
    lines = (line.replace(name, "kernel").split() for section in kept for line in section.splitlines())
    return "\n".join(" ".join(words) for words in lines if words and not words[0].startswith("//"))


def options(told: dict[str, Any]) -> list[tuple[str, str]]:
    """The compiler's options, libraries by content."""
    libraries = {name: contents(path) for name, path in dict(told.get("extern_libs") or ()).items()}
    return sorted((name, repr(value)) for name, value in (told | {"extern_libs": libraries}).items())


@functools.cache
def contents(path: str) -> str:
    return sha256(Path(path).read_bytes()).hexdigest()[:16]


@functools.cache
def settings() -> str:
    """(2), as it is at the first call in a process."""
    held = {
        f"{group}.{name}": repr(getattr(getattr(knobs, group), name))
        for group in SETTINGS
        for name in sorted(getattr(knobs, group).knob_descriptors)
        if name not in NO_CODE
    }
    return digest(repr((triton.__version__, knobs.nvidia.ptxas.version, held)))


def unnamed(text: str) -> str:
    """Triton IR with a number instead of each function's name, in order of definition, and each constant at its uses."""
    for number, name in enumerate(dict.fromkeys(FUNCTION.findall(text))):
        text = re.sub(rf"@{re.escape(name)}(?![\w.$-])", f"@function_{number}", text)
    return "".join(_with_constants(function) for function in re.split(r"(?=tt\.func )", text))


def _with_constants(function: str) -> str:
    constants = dict(CONSTANT.findall(function))
    return VALUE.sub(lambda use: f"<{constants[use[0]]}>" if use[0] in constants else use[0], CONSTANT.sub("", function))
