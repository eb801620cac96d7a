"""Build llama-server, with the converter of checkpoints, from the source distribution of llama-cpp-python.

python build_llama.py [--into FOLDER] [--jobs 2]        FOLDER: `llama` in the environment of this Python

The distribution must have its expected hash. What is there already is kept: a second run does nothing. FOLDER must be new,
empty, or made by this script: it is replaced.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
HASH = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
HOME = Path(sys.prefix) / "llama"
SERVER = "llama-server"
WRAPPER, CONVERT = Path(__file__).parent / "convert_llama.py", "convert.py"
TREE = f"{PACKAGE.replace('-', '_')}-{VERSION}/vendor/llama.cpp"
OFF = ("BUILD_SHARED_LIBS", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_APP", "LLAMA_BUILD_UI")
MADE = f"{PACKAGE} {VERSION} {HASH}"


def source(folder: Path) -> Path:
    """Fetch and unpack the source. Raises: SystemExit for another distribution than the pinned one."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE, "--dest", str(folder)]
    subprocess.run([*pip, f"{PACKAGE}=={VERSION}"], check=True)
    (packed,) = folder.glob("*.tar.gz")
    found = hashlib.sha256(packed.read_bytes()).hexdigest()
    if found != HASH:
        raise SystemExit(f"{packed.name} has the hash {found}, but must have {HASH}; nothing was built")
    with tarfile.open(packed) as archive:
        members = [one for one in archive.getmembers() if one.name.startswith(f"{TREE}/")]
        archive.extractall(folder, members, filter="data")
    return folder / TREE


def build(tree: Path, jobs: int) -> Path:
    """Compile the server alone, C++ with -O1 and C with -O2: it runs small models. Returns its path."""
    found = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    cmake = shutil.which("cmake", path=os.pathsep.join(found)) or "cmake"
    own = os.environ | {"PATH": os.pathsep.join(found)}
    flags = [f"-D{name}=OFF" for name in OFF]
    flags += ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DCMAKE_C_FLAGS_RELEASE=-O2", "-GNinja"]
    subprocess.run([cmake, "-S", str(tree), "-B", str(tree / "build"), *flags], check=True, env=own)
    subprocess.run([cmake, "--build", str(tree / "build"), "-j", str(jobs), "--target", SERVER], check=True, env=own)
    return tree / "build" / "bin" / SERVER


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=HOME)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    stamp = given.into / "made"
    if stamp.is_file() and stamp.read_text() == MADE:
        shutil.copy2(WRAPPER, given.into / CONVERT)
        print(f"{given.into} holds {SERVER} of {PACKAGE} {VERSION}")
        return
    if given.into.exists() and not stamp.is_file() and any(given.into.iterdir()):
        raise SystemExit(f"{given.into} holds files that this script did not make; name a new folder with --into")
    with tempfile.TemporaryDirectory(dir=given.into.parent) as made:
        tree = source(Path(made))
        server = build(tree, given.jobs)
        if given.into.exists():
            shutil.rmtree(given.into)
        given.into.mkdir()
        stamp.touch()  # the folder is ours, though it is not yet whole
        shutil.copy2(server, given.into)
        shutil.copy2(WRAPPER, given.into / CONVERT)
        for part in ("conversion", "gguf-py"):
            shutil.copytree(tree / part, given.into / part)
    stamp.write_text(MADE)
    print(f"{given.into} holds {SERVER} of {PACKAGE} {VERSION}")


if __name__ == "__main__":
    main()
