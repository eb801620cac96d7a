"""Whether the kernels of two revisions are the same machine code: `python -m perf_gates.same_code REVISION`, on any machine.

The catalogue of this tree is launched with the package of the revision, then with that of this tree. Of each launch are
compared:

    the machine code    with what the loader is told of it, but without names, lines and what is for debuggers     (1)
    the launch          grid, warps, shared memory, options, and what the kernel is given at run time              (2)

Compiled are kernels without line information, as with it ptxas chose other registers where only lines had moved.
A tensor is known by its shape, strides, type, and its place among those of the launches before it.
For a change that moves code and means to change nothing; what has other code is listed with what moved.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import triton
from torch import Tensor

from . import catalogue, ptx
from .capture import Launch, build
from .compiled import disassembled, launches_on

ROOT = Path(__file__).parent.parent
SPEC = find_spec("ssmspec_kernels")
KERNELS = Path(str(SPEC and SPEC.origin)).parent.parent
"""The folder of this tree's package, or of the one that is installed."""
SECTION = re.compile(r"^//-{20,} \.(\S+)", re.MULTILINE)
"""The head of a section in what nvdisasm prints."""
DEBUG = ("debug", "nv_debug", "rel.debug", "rel.nv_debug", "rela.debug")
OPTIONS = ("num_warps", "num_ctas", "shared", "launch_pdl", "launch_cooperative_grid", "global_scratch_size")


@dataclass(frozen=True)
class Code:
    """A launch as it is compared: digests of (1), and (2) as text; what the digest is of, counted."""

    code: str
    launch: str
    instructions: dict[str, int]


def plain(disassembly: str, name: str) -> str:
    """What nvdisasm printed of a kernel, without its name and the sections for debuggers."""
    starts = [match.start() for match in SECTION.finditer(disassembly)]
    sections = (disassembly[a:b] for a, b in zip(starts, [*starts[1:], len(disassembly)], strict=True))
    kept = [s for s in sections if not SECTION.match(s)[1].startswith(DEBUG)]  # type: ignore[index]
    if not any(".text." in section for section in kept):
        raise RuntimeError(f"nvdisasm printed no code of {name}")
    lines = (line.replace(name, "kernel").split() for section in kept for line in section.splitlines())
    return "\n".join(" ".join(words) for words in lines if words and not words[0].startswith("//"))


def described(launch: Launch, known: dict[int, int]) -> str:
    """(2), but for what compilation adds; `known` numbers the tensors, and learns new ones."""
    constants = {p.name for p in launch.kernel.params if p.is_constexpr}
    named = dict(zip(launch.kernel.arg_names, launch.args, strict=False))
    given = [
        value for name, value in (named | launch.kwargs).items() if name in launch.kernel.arg_names and name not in constants
    ]
    return f"grid {launch.grid}, given {[_described(value, known) for value in given]}"


def _described(value: Any, known: dict[int, int]) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    number = known.setdefault(id(value), len(known))
    return f"{number}: {tuple(value.shape)} {value.stride()} {value.dtype} {value.storage_offset()}"


def codes(name: str, capability: int) -> dict[str, Code]:
    """The launches of the entry of that name, by entry and place."""
    entry = next(e for e in catalogue.entries() if e.name == name)
    launches, known = launches_on(entry, capability), dict[int, int]()
    return {f"{name} {i}": _code(launch, capability, known) for i, launch in enumerate(launches)}


def _code(launch: Launch, capability: int, known: dict[int, int]) -> Code:
    compiled = build(launch, capability).compiled
    printed = disassembled(compiled.asm["cubin"])
    digest = sha256(plain(printed, launch.name).encode()).hexdigest()
    options = {name: getattr(compiled.metadata, name) for name in OPTIONS}
    return Code(digest, f"{described(launch, known)}, {options}", dict(ptx.histogram(printed)))


def of_tree(kernels: Path, names: list[str], capability: int, jobs: int) -> dict[str, Code]:
    """The launches of a tree's package, compiled in a process that imports that package.

    Raises: RuntimeError with what that process said, where it failed.
    """
    paths = [str(kernels), *(p for p in sys.path if p), str(ROOT)]
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": os.pathsep.join(paths), "TRITON_DISABLE_LINE_INFO": "1"}
    command = [sys.executable, "-m", "perf_gates.same_code", "--of", str(kernels), f"--sm={capability}", f"--jobs={jobs}"]
    done = subprocess.run(command, input=json.dumps(names), capture_output=True, text=True, env=env, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"the kernels of {kernels} could not be compiled:\n{done.stderr[-4000:]}")
    return {name: Code(**code) for name, code in json.loads(done.stdout.splitlines()[-1]).items()}


def _print_codes(kernels: Path, capability: int, jobs: int) -> None:
    """The other side of `of_tree`."""
    package = import_module("ssmspec_kernels")
    if not Path(package.__file__ or "").resolve().is_relative_to(kernels.resolve()):
        raise RuntimeError(f"ssmspec_kernels came from {package.__file__}, not from {kernels}")
    names = json.load(sys.stdin)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        found = list((map if jobs == 1 else pool.map)(codes, names, [capability] * len(names)))
    print(json.dumps({name: asdict(code) for part in found for name, code in part.items()}))


def unpacked(revision: str, folder: Path) -> Path:
    """The folder `kernels` of a revision of this repository.

    Raises: subprocess.CalledProcessError for a revision that is not known.
    """
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", revision, "kernels"]
    packed = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "kernels"


def differences(before: dict[str, Code], after: dict[str, Code]) -> Iterator[str]:
    """A line for each launch that is not the same."""
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after:
            yield f"{name}: launched only {'after' if name in after else 'before'} the change"
            continue
        was, now = before[name], after[name]
        if was.launch != now.launch:
            yield f"{name}: launched as\n    {was.launch}\n    {now.launch}"
        if was.code != now.code:
            moved = {
                op: (was.instructions.get(op, 0), now.instructions.get(op, 0)) for op in was.instructions | now.instructions
            }
            counts = ", ".join(f"{op} {a} -> {b}" for op, (a, b) in sorted(moved.items()) if a != b)
            total = f"{sum(was.instructions.values())} -> {sum(now.instructions.values())} instructions"
            yield f"{name}: other code, {total}; {counts or 'as many of each'}"


def main(argv: list[str] | None = None) -> int:
    """Print what differs; 1 if anything does."""
    parser = argparse.ArgumentParser(prog="python -m perf_gates.same_code", description=__doc__.splitlines()[0])
    parser.add_argument("revision", nargs="?", default="HEAD", help="what the tree is compared with")
    parser.add_argument("--only", default="", help="entries whose names hold one of these, separated by commas")
    parser.add_argument("--sm", type=int, default=90, help="the architecture")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.of is not None:
        _print_codes(options.of, options.sm, options.jobs)
        return 0
    chosen = [
        e for e in catalogue.entries() if options.sm in e.on and any(part in e.name for part in options.only.split(","))
    ]
    if not chosen:
        parser.error(f"no entry's name holds {options.only!r}")
    names = [e.name for e in chosen]
    with tempfile.TemporaryDirectory() as folder:
        before = of_tree(unpacked(options.revision, Path(folder)), names, options.sm, options.jobs)
    after = of_tree(KERNELS, names, options.sm, options.jobs)
    found = list(differences(before, after))
    print(
        "\n".join(
            [
                *found,
                f"{len(after)} launches compiled by triton {triton.__version__} for sm_{options.sm}, {len(found)} differ",
            ]
        )
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
