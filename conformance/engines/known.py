"""Engines by name: the program of each, the constraints file of its environment, and how to create that environment."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ssmspec_ref.options.words import nearest

from ..errors import AdapterUnavailable
from ..run.program import words_of
from .errors import EngineDied, EngineFailed
from .http import Server
from .program import ANSWERING, Program
from .protocol import Engine, Options

HERE = Path(__file__).parent
PROGRAM, HTTP = "program:", "http:"
MISSING = "No such file or directory"


@dataclass(frozen=True)
class Known:
    """An engine whose adapter ships: the command after its Python, its tox environment, and whether a process can start it
    only `once`."""

    words: tuple[str, ...]
    environment: str
    once: bool = False


ENGINES = {
    "ssmspec": Known(("-m", "ssmspec_fast.adapters.program"), "engine-ssmspec"),
    "transformers": Known((str(HERE / "adapters" / "with_transformers.py"),), "engine-transformers"),
    "mlx": Known((str(HERE / "adapters" / "with_mlx.py"),), "engine-mlx"),
    "llama.cpp": Known((str(HERE / "adapters" / "with_llama.py"),), "engine-llama"),
    "vllm": Known((str(HERE / "adapters" / "with_vllm.py"),), "engine-vllm", once=True),
}


def opener(engine: str, python: str | None, timeout: float = ANSWERING, memory: int | None = None) -> Callable[[], Engine]:
    """A function that starts an engine.

    Raises: AdapterUnavailable for an unknown name, an engine without its Python, a program that the system cannot start, or a
    server that does not answer.
    """
    if engine.startswith(PROGRAM):
        words = words_of(engine.removeprefix(PROGRAM), PROGRAM)
        startable(engine, words)
        return lambda: Program(words, memory, timeout)
    if is_server(engine):
        answering(engine, timeout)
        return lambda: Server(engine, timeout)
    if engine not in ENGINES:
        names = f"{', '.join(ENGINES)}, http:URL, program:COMMAND"
        raise AdapterUnavailable(f"no engine is named {engine!r}{nearest(engine, ENGINES)}; the engines are {names}")
    if python is None:
        told = f"tox run -e {ENGINES[engine].environment} makes its environment and judges it"
        raise AdapterUnavailable(f"{engine} needs its own environment: give its Python with --python; or {told}")
    known = ENGINES[engine]
    startable(f"--python {python}", [python])
    return lambda: Program([python, *known.words], memory, timeout, known.once)


def is_server(engine: str) -> bool:
    """Whether an engine is given by the address of a server."""
    return engine.startswith((HTTP, "https:"))


def startable(named: str, words: list[str]) -> None:
    """Raises: AdapterUnavailable for a command that the system cannot start, or a Python script that does not exist."""
    if not words:
        raise AdapterUnavailable(f"{named} is empty; give what starts the engine, such as program:'python my_engine.py'")
    found = shutil.which(words[0])
    if found is None:
        why = "Permission denied" if Path(words[0]).is_file() else "Is a directory" if Path(words[0]).is_dir() else MISSING
        raise AdapterUnavailable(f"{named} cannot be started: {words[0]}: {why}; give a command that runs here")
    script = next((word for word in words[1:] if not word.startswith("-")), "")
    if Path(found).name.startswith("python") and words[1:2] == [script] and not Path(script).exists():
        raise AdapterUnavailable(f"{named} cannot be started: {script}: {MISSING}; give the path of the script")


def answering(address: str, timeout: float) -> None:
    """Raises: AdapterUnavailable for an address at which no server answers whose form is known."""
    try:
        Server(address, timeout).start("", Options())
    except (EngineDied, EngineFailed) as error:
        raise AdapterUnavailable(f"{address} cannot be judged: {error}; start the server, and give its address") from error
