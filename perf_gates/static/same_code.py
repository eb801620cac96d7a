"""Whether the kernels of two revisions are the same machine code, on any machine.

    python -m perf_gates.static.same_code REVISION
    python -m perf_gates.static.same_code REVISION --renamed new=old ..     where modules, launchers or their arguments have
                                                                            other names now
    python -m perf_gates.static.same_code REVISION --keep FOLDER            continues an interrupted run
    python -m perf_gates.static.same_code REVISION --machine-code           every launch compiled, whatever its Triton IR

The catalogue of this tree, and every timed variant that is not in it, are launched with the package of the revision, then
with that of this tree, independent of folders. Of each launch these are compared:

    the machine code    with what the loader reads of it, but without names, lines and debug information           (1)
    the launch          grid, warps, shared memory, options, and what the kernel is given at run time              (2)
    the Triton IR       after the passes on it, without names and lines, with all options of the compiler          (3)

(3) and (2) are compared first, because they take a twentieth of the time. Launches that they show to be equal count as proven
by `ir`, because the rest of the compiler is a function of them. All others are compiled to (1), and so is one launch of each
kernel whose source changed, to check that claim: the text of (3) leaves out the order of constants and of a value's uses. If
no source changed, one launch is compiled.

Kernels are compiled without line information, because with it ptxas chose other registers where only lines had moved.
A tensor is identified by its shape, strides, type, and its place among those of the launches before it.
For a change that should not alter the machine code; launches with other code are listed with the changed instructions.
"""

import functools
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from inspect import isfunction, signature
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import triton
import typer

from conformance.main import run_command
from ssmspec_ref.errors import OptionError

from ..digest.launches import OF_THE_LAUNCH, Tensors, described, disassembled, plain, unnamed
from ..digest.texts import digest, kernels_text
from ..gpu.rehearsal import H200, rehearse
from ..gpu.variants import PARTS, sides, variant
from ..verdicts.gates import load
from . import catalogue, ptx
from .capture import Launch, build, optimised_ir
from .compiled import launches_on
from .kernel_modules import homes, kernel_module

ROOT = Path(__file__).parents[2]
SPEC = find_spec("ssmspec_kernels")
KERNELS = Path(str(SPEC and SPEC.origin)).parent.parent
"""The folder of this tree's package, or of the one that is installed."""
TIMED, CORE = "timed ", "core"
AT_ONCE = 8
"""Names that are compiled before their results are saved."""


@dataclass(frozen=True)
class Code:
    """A launch for comparison: a digest of (1), (2) as text, and the counted instructions."""

    code: str
    launch: str
    instructions: dict[str, int]


@dataclass(frozen=True)
class Intermediate:
    """A launch before machine code: a digest of (3), (2) as text; its kernel, and a digest of the kernel's source."""

    ir: str
    launch: str
    kernel: str
    source: str


Compared = Code | Intermediate


def codes(name: str, capability: int, form: str = "code") -> dict[str, Compared]:
    """The launches of the entry with that name, by entry and place; for a timed case only those that its name counts."""
    made, known = FORMS[form].make, Tensors()
    if name.startswith(TIMED):
        part, case, wanted = name.removeprefix(TIMED).rsplit("#", 2)
        launches = timed(part)[int(case)]
        return {
            f"{TIMED}{part}#{case}#{i}": made(launches[i], capability, known)
            for i in map(int, wanted.split("+"))
            if i < len(launches)
        }
    entry = next(e for e in catalogue.entries() if e.name == name)
    return {f"{name} {i}": made(launch, capability, known) for i, launch in enumerate(launches_on(entry, capability))}


@functools.cache
def timed(part: str) -> list[list[Launch]]:
    """The launches of every case of a timed part; for the core set those of every pair."""
    if part == CORE:
        return [sides(pair) for pair in load().core]
    return [launches for _, launches in rehearse(part)]


def timed_names() -> list[str]:
    """The timed cases, each with the launches whose variant is in no entry of the catalogue and no earlier case."""
    have = {variant(launch) for e in catalogue.entries() if H200 in e.on for launch in launches_on(e, H200)}
    names = []
    for part in (*PARTS, CORE):
        for case, launches in enumerate(timed(part)):
            new = []
            for i, launch in enumerate(launches):
                if variant(launch) not in have:
                    have.add(variant(launch))
                    new.append(i)
            if new:
                names.append(f"{TIMED}{part}#{case}#{'+'.join(map(str, new))}")
    return names


def rename(names: dict[str, str]) -> None:
    """Makes modules, functions and arguments of launchers of a package available under their names in another: new name, old
    name.

    Raises: LookupError for an old name that the package does not have.
    """
    for new, old in names.items():
        modules = {name: kernel_module(name) for name in [*homes()]}
        functions = [module for module in modules.values() if hasattr(module, old)]
        launchers = {name: vars(module)[name] for name, module in modules.items() if isfunction(vars(module).get(name))}
        taking = {name: launcher for name, launcher in launchers.items() if old in signature(launcher).parameters}
        if old in homes():
            homes().setdefault(new, homes()[old])
        elif not functions and not taking:
            raise LookupError(
                f"the package has no module, no function and no launcher with an argument {old!r}; give new=old"
            )
        for module in functions:
            setattr(module, new, getattr(module, old))
        for name, launcher in taking.items():
            setattr(modules[name], name, _given_as(launcher, new, old))


def _given_as(launcher: Callable[..., Any], new: str, old: str) -> Callable[..., Any]:
    """The launcher, with a name for an argument in place of another."""

    @functools.wraps(launcher)
    def called(*args: Any, **options: Any) -> Any:
        return launcher(*args, **{old if name == new else name: value for name, value in options.items()})

    return called


def _code(launch: Launch, capability: int, known: Tensors) -> Code:
    compiled = build(launch, capability).compiled
    printed = disassembled(compiled.asm["cubin"])
    options = {name: getattr(compiled.metadata, name) for name in OF_THE_LAUNCH}
    return Code(
        digest(plain(printed, launch.name)), f"{described(launch, known.told)}, {options}", dict(ptx.histogram(printed))
    )


def _intermediate(launch: Launch, capability: int, known: Tensors) -> Intermediate:
    text, told = optimised_ir(launch, capability)
    found = digest(f"{unnamed(text)}\n{sorted((name, repr(value)) for name, value in told.items())}")
    return Intermediate(found, described(launch, known.told), launch.name, digest(str(launch.kernel.cache_key)))


@dataclass(frozen=True)
class Form:
    """The form in which a launch is compared, how it is made, and how many names are made before saving."""

    kind: type[Compared]
    make: Callable[[Launch, int, Tensors], Compared]
    at_once: int


FORMS = {"code": Form(Code, _code, AT_ONCE), "ir": Form(Intermediate, _intermediate, 1000)}


def of_tree(
    kernels: Path,
    names: list[str],
    capability: int,
    jobs: int,
    renamed: dict[str, str] | None = None,
    form: str = "code",
) -> dict[str, Any]:
    """The launches of a tree's package in a form of `FORMS`, compiled in a process that imports that package; `renamed` as in
    `rename`.

    Raises: RuntimeError with the output of that process, if it failed.
    """
    paths = [str(kernels), *(p for p in sys.path if p), str(ROOT)]
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": os.pathsep.join(paths), "TRITON_DISABLE_LINE_INFO": "1"}
    command = [
        sys.executable,
        "-m",
        "perf_gates.static.same_code",
        "--of",
        str(kernels),
        f"--sm={capability}",
        f"--jobs={jobs}",
        f"--form={form}",
    ]
    done = subprocess.run(
        command, input=json.dumps([names, renamed or {}]), capture_output=True, text=True, env=env, cwd=ROOT
    )
    if done.returncode:
        raise RuntimeError(f"the kernels of {kernels} could not be compiled:\n{done.stderr[-4000:]}")
    return {name: FORMS[form].kind(**code) for name, code in json.loads(done.stdout.splitlines()[-1]).items()}


def in_parts(
    folder: Path | None,
    kernels: Path,
    names: list[str],
    capability: int,
    jobs: int,
    renamed: dict[str, str] | None = None,
    form: str = "code",
) -> dict[str, Any]:
    """As `of_tree`, AT_ONCE names at a time, each part saved in a folder under a key of its inputs."""
    how = capability, jobs, renamed, form
    if folder is None:
        return of_tree(kernels, names, *how)
    folder.mkdir(parents=True, exist_ok=True)
    made, found = (triton.__version__, kernels_text(kernels / "ssmspec_kernels"), how), dict[str, Any]()
    for part in (names[at : at + FORMS[form].at_once] for at in range(0, len(names), FORMS[form].at_once)):
        file = folder / f"{digest(repr((made, part)))}.json"
        if not file.exists():
            codes = of_tree(kernels, part, *how)
            file.write_text(json.dumps({name: asdict(code) for name, code in codes.items()}))
        found |= {name: FORMS[form].kind(**code) for name, code in json.loads(file.read_text()).items()}
    return found


def _print_codes(kernels: Path, capability: int, jobs: int, form: str) -> None:
    """The other side of `of_tree`."""
    package = import_module("ssmspec_kernels")
    if not Path(package.__file__ or "").resolve().is_relative_to(kernels.resolve()):
        raise RuntimeError(f"ssmspec_kernels was imported from {package.__file__}, not from {kernels}")
    names, renamed = json.load(sys.stdin)
    rename(renamed)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=rename, initargs=(renamed,)) as pool:
        found = list((map if jobs == 1 else pool.map)(codes, names, [capability] * len(names), [form] * len(names)))
    print(json.dumps({name: asdict(code) for part in found for name, code in part.items()}))


def unpacked(revision: str, folder: Path) -> Path:
    """The `kernels` folder of a revision of this repository.

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


def unproven(before: dict[str, Intermediate], after: dict[str, Intermediate]) -> set[str]:
    """The launches that (2) and (3) do not prove to be the same."""
    names = before.keys() | after.keys()
    one, other = ({n: (c.ir, c.launch) for n, c in side.items()} for side in (before, after))
    return {name for name in names if name not in one or name not in other or one[name] != other[name]}


def sampled(before: dict[str, Intermediate], after: dict[str, Intermediate]) -> set[str]:
    """The first launch of each kernel whose source changed."""
    changed = [name for name in after if name in before and before[name].source != after[name].source]
    return {*{after[name].kernel: name for name in reversed(changed)}.values()}


def entry_of(name: str, names: list[str]) -> str:
    """The name, of those that `codes` takes, of a launch."""
    if not name.startswith(TIMED):
        return name.rpartition(" ")[0]
    case, _, place = name.rpartition("#")
    return next(n for n in names if n.rpartition("#")[0] == case and place in n.rpartition("#")[2].split("+"))


def main(
    revision: Annotated[str, typer.Argument(help="The revision to compare with.")] = "HEAD",
    only: Annotated[str, typer.Option(help="Only entries with one of these in their names, separated by commas.")] = "",
    sm: Annotated[int, typer.Option(help="The architecture.")] = H200,
    jobs: Annotated[int, typer.Option(help="Processes at once.")] = 2,
    of: Annotated[Path | None, typer.Option(hidden=True)] = None,
    form: Annotated[str, typer.Option(hidden=True)] = "code",
    without_sample: Annotated[
        bool, typer.Option("--without-sample", help="Compile only what differs, where another run has it.")
    ] = False,
    machine_code: Annotated[
        bool, typer.Option("--machine-code", help="Compile every launch, also those with equal Triton IR.")
    ] = False,
    renamed: Annotated[list[str] | None, typer.Option(metavar="NEW=OLD ..", help="Names of the revision.")] = None,
    without_timed: Annotated[bool, typer.Option("--without-timed", help="The catalogue only.")] = False,
    keep: Annotated[
        Path | None, typer.Option(help="A folder for what is compiled, so that an interrupted run continues.")
    ] = None,
) -> int:
    """Print what differs; 1 if anything does."""
    if of is not None:
        _print_codes(of, sm, jobs, form)
        return 0
    others = dict(pair.split("=", 1) for pair in renamed or ())
    names = [e.name for e in catalogue.entries() if sm in e.on]
    names += timed_names() if sm == H200 and not without_timed else []
    names = [name for name in names if any(part in name for part in only.split(","))]
    if not names:
        raise OptionError(f"no entry has {only!r} in its name")
    with tempfile.TemporaryDirectory() as folder:
        kernels = unpacked(revision, Path(folder))
        sides = (kernels, others), (KERNELS, dict[str, str]())
        how = sm, jobs
        before, after = (in_parts(keep, side, names, *how, told, "ir") for side, told in sides)
        proven = before.keys() | after.keys()
        few = unproven(before, after) | (set() if without_sample else sampled(before, after))
        few = few or (set() if without_sample else {min(proven)})
        machine = proven if machine_code else few
        entries = sorted({entry_of(name, names) for name in machine})
        was, now = (in_parts(keep, side, entries, *how, told) for side, told in sides)
    was, now = ({name: code for name, code in side.items() if name in machine} for side in (was, now))
    found = list(differences(was, now))
    summary = f"{len(proven)} compared, {len(machine)} of them as machine code, {len(found)} differ"
    print("\n".join([*found, f"triton {triton.__version__}, sm_{sm}: {summary}"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(run_command(main))
