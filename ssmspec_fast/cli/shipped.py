"""The models that ship, by name. They are a separate distribution: who tests a kernel does not install 14 MB of weights.

pip install ../ssmspec/ssmspec_fast/checkpoints        an editable install of the checkout `../ssmspec` has them already
"""

from pathlib import Path

from ssmspec_ref.errors import ParameterError
from ssmspec_ref.options.words import nearest

SHIPPED = Path(__file__).parent.parent / "checkpoints"
INSTALL = "pip install ../ssmspec/ssmspec_fast/checkpoints"


def that_ships(name: str) -> Path:
    """The folder of a model that ships. Raises: ParameterError if it is not installed, with the command that installs it."""
    folder = SHIPPED / name
    if not (folder / "config.json").is_file():
        raise ParameterError(
            f"{name} does not exist, and the models that ship are not installed; run {INSTALL}, or give a folder"
        )
    return folder


def shipped(given: Path | None, words: tuple[str, ...] = ()) -> Path | None:
    """The folder of a shipped model, given by its name; a folder that exists, and each of some words, unchanged.

    Raises: ParameterError for anything else; if no model is installed, with the command that installs them.
    """
    if given is None or given.exists() or str(given) in words:
        return given
    names = sorted(folder.parent.name for folder in SHIPPED.glob("*/config.json"))
    if str(given) in names or not names:
        return that_ships(str(given))
    near = nearest(str(given), [*words, *names])
    raise ParameterError(f"{given} does not exist{near}; give a folder, or one of {', '.join([*words, *names])}")
