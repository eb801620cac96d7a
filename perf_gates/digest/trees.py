"""Digests of a tree of this repository, made in processes that import that tree, with the Triton that the GPU machine has.

`python -m perf_gates.digest --install` puts this Triton into a folder, from which only these processes import it.
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TRITON = "3.6.0"
"""What results were measured with (`limits.triton` of gates.toml)."""
VARIABLE = "SSMSPEC_TRITON"
FOLDER = Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "ssmspec" / f"triton-{TRITON}")
INSTALL = "python -m perf_gates.digest --install"
NAME = "ssmspec_recorder"
"""The package that holds this code in a process that imports another tree."""
PACKAGES = ("kernels", "perf_gates", "conformance", "ssmspec_ref", "ssmspec_fast")
CODE = ("digest", "static/capture.py", "static/on_device.py")
SHARES = (
    ("steps", "papers", "linear", "core_set"),
    ("buffered", "buffered_delta", "kda", "unrolled", "prefill", "peers"),
    ("bench",),
)
"""The parts whose calls are recorded, by a process each; the second also has the catalogue."""
Recorded = dict[str, dict[str, Any]]
"""What `measured` prints: calls, entries, machine code, kernels."""


class Unproven(RuntimeError):
    """What cannot be recomputed here."""


def folder() -> Path | None:
    """Where the Triton of the results is; None for the environment's own. Raises: Unproven."""
    if find_spec("triton") and metadata.version("triton") == TRITON:
        return None
    if not (FOLDER / f"triton-{TRITON}.dist-info").exists():
        raise Unproven(f"Triton {TRITON} is not in {FOLDER}; run `{INSTALL}`, or name its folder in {VARIABLE}")
    return FOLDER


def install() -> None:
    """Raises: subprocess.CalledProcessError."""
    try:
        folder()
    except Unproven:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(FOLDER)]
        env = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
        subprocess.run([*pip, f"triton=={TRITON}"], check=True, env=env)


def checkout() -> Path:
    """The root of the checkout in which this package, or its environment, or the working folder is."""
    for folder in (ROOT, Path.cwd()):
        done = subprocess.run(["git", "-C", str(folder), "rev-parse", "--show-toplevel"], capture_output=True, text=True)
        if done.returncode == 0:
            return Path(done.stdout.strip())
    return ROOT


def held(revision: str) -> bool:
    """Whether git holds a commit. Raises: Unproven in a shallow clone or without git, which do not tell."""
    git = ["git", "-C", str(checkout())]
    if subprocess.run([*git, "cat-file", "-e", f"{revision}^{{commit}}"], capture_output=True).returncode == 0:
        return True
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    if shallow.stdout.strip() != "false":
        raise Unproven(f"{revision} may lie in history that this clone lacks; run `git fetch --unshallow`")
    return False


def unpacked(revision: str, into: Path) -> Path:
    """The tree of a revision. Raises: Unproven for one that git does not hold."""
    git = ["git", "-C", str(checkout()), "archive", "--format=tar", revision]
    done = subprocess.run([*git, *PACKAGES], capture_output=True)
    if done.returncode:
        raise Unproven(f"git does not hold {revision}; fetch the whole history (`git fetch --unshallow`), or measure again")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(into, filter="data")
    return into


def codes() -> Path:
    """Where digests of what was compiled are kept, so that only what changed is compiled again."""
    folder = FOLDER.parent / "codes"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def asked(
    parts: Iterable[str],
    *,
    entries: bool,
    names: Iterable[str] | None = None,
    machine: Iterable[str] = (),
    apart: bool = False,
) -> dict[str, Any]:
    """What one process records: parts, perhaps the catalogue; all of it, or what is named. `machine`: of these the machine
    code too, compiled `apart` for each source or once for the same Triton IR."""
    chosen = {"names": None if names is None else [*names], "machine": [*machine], "apart": apart}
    return {"parts": [*parts], "entries": entries, "folder": str(codes()), **chosen}


def everything() -> list[dict[str, Any]]:
    """All measurements and the catalogue."""
    return [asked(parts, entries=parts == SHARES[1]) for parts in SHARES]


def recorded(tree: Path, kernels: Path, own: Path | None, work: Iterable[dict[str, Any]]) -> Recorded:
    """What `measured` prints of a tree, by a process for each of `work`. `own`: a folder of Triton.

    Raises: RuntimeError with the output of a process that failed.
    """
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(2) as pool:
        code = Path(temporary) / NAME
        for part in CODE:
            source, target = Path(__file__).parents[1] / part, code / part
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        for package in (code, code / "static"):
            (package / "__init__.py").touch()
        paths = [*filter(None, [own]), temporary, kernels, tree, *(path for path in sys.path if path)]
        env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
        env |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}

        def one(share: dict[str, Any]) -> dict[str, Any]:
            command = [sys.executable, "-m", f"{NAME}.digest.measured"]
            done = subprocess.run(command, input=json.dumps(share), capture_output=True, text=True, env=env, cwd=temporary)
            if done.returncode:
                raise RuntimeError(f"the calls of {tree} could not be recorded:\n{done.stderr[-4000:]}")
            return json.loads(done.stdout.splitlines()[-1])

        found: Recorded = {}
        for made in pool.map(one, work):
            for kind, rows in made.items():
                found.setdefault(kind, {}).update(rows)
        return found
