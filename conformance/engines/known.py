"""Engines by name: the program of each, the constraints file of its environment, and how to create that environment."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import AdapterUnavailable
from ..refusal import nearest
from .http import Server
from .judge import Engine
from .program import ANSWERING, Program

HERE = Path(__file__).parent
PROGRAM, HTTP = "program:", "http:"


@dataclass(frozen=True)
class Known:
    """An engine that ships with a door: the command after its Python, its tox environment, and whether a process can start it
    only `once`."""

    words: tuple[str, ...]
    environment: str
    once: bool = False


ENGINES = {
    "ssmspec": Known(("-m", "ssmspec_fast.adapters.program"), "engine-ssmspec"),
    "transformers": Known((str(HERE / "doors" / "with_transformers.py"),), "engine-transformers"),
    "mlx": Known((str(HERE / "doors" / "with_mlx.py"),), "engine-mlx"),
    "llama.cpp": Known((str(HERE / "doors" / "with_llama.py"),), "engine-llama"),
    "vllm": Known((str(HERE / "doors" / "with_vllm.py"),), "engine-vllm", once=True),
}


def opener(engine: str, python: str | None, timeout: float = ANSWERING, memory: int | None = None) -> Callable[[], Engine]:
    """A function that starts an engine. Raises: AdapterUnavailable for an unknown name, or an engine without its Python."""
    if engine.startswith(PROGRAM):
        command = engine.removeprefix(PROGRAM)
        return lambda: Program(command, memory, timeout)
    if engine.startswith((HTTP, "https:")):
        return lambda: Server(engine, timeout)
    if engine not in ENGINES:
        names = f"{', '.join(ENGINES)}, http:URL, program:COMMAND"
        raise AdapterUnavailable(f"no engine is named {engine!r}{nearest(engine, ENGINES)}; the engines are {names}")
    if python is None:
        told = f"tox run -e {ENGINES[engine].environment} makes its environment and judges it"
        raise AdapterUnavailable(f"{engine} runs in an environment of its own: give --python, the Python of that; or {told}")
    known = ENGINES[engine]
    return lambda: Program([python, *known.words], memory, timeout, known.once)
