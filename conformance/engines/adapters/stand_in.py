"""A torchvision that imports and holds nothing, for an environment without one.

vLLM's Qwen3.5 imports readers of pictures, which a text does not use, in another process, so that this has to be a file.

python stand_in.py        writes it into the environment of this Python; keeps a torchvision that is there
"""

import sysconfig
from importlib.util import find_spec
from pathlib import Path

NAME = "torchvision"
SOURCE = '''"""Nothing, in place of torchvision: its names can be imported, and not be used."""

import sys
import types

__version__ = "0.0.0"
MODES = ("NEAREST", "NEAREST_EXACT", "BOX", "BILINEAR", "HAMMING", "BICUBIC", "LANCZOS")


class Nothing(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), dict.fromkeys(MODES))


for name in ("io", "ops", "transforms", "transforms.functional", "transforms.v2", "transforms.v2.functional"):
    parent, _, last = f"{__name__}.{name}".rpartition(".")
    sys.modules[f"{parent}.{last}"] = module = Nothing(f"{parent}.{last}")
    setattr(sys.modules[parent], last, module)
'''


def main() -> None:
    if find_spec(NAME) is not None:
        return
    folder = Path(sysconfig.get_path("purelib")) / NAME
    folder.mkdir()
    (folder / "__init__.py").write_text(SOURCE, encoding="utf-8")
    print(f"{folder}: a stand-in")


if __name__ == "__main__":
    main()
