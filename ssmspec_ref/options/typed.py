"""Options that were typed, and those among them that have no use."""

from collections.abc import Iterable
from typing import Any

from ..errors import OptionError

TYPED = ("COMMANDLINE", "ENVIRONMENT")


class Typed:
    """The options on the command line by name, such as --top-k; defaults are not among them. `context` is typer's."""

    def __init__(self, context: Any) -> None:
        self.values = {
            max(parameter.opts, key=len): context.params.get(parameter.name)
            for parameter in context.command.params
            if getattr(context.get_parameter_source(parameter.name), "name", "") in TYPED
        }

    def unused(self, options: Iterable[str], why: str, instead: str = "") -> None:
        """Refuse options that would be ignored. Raises: OptionError with those that were typed, why, and what to do."""
        found = [option for option in options if option in self.values]
        if found:
            told, one = ", ".join(map(self._told, found)), len(found) == 1
            what = f"omit {'it' if one else 'them'}" + (f", or {instead}" if instead else "")
            raise OptionError(f"{told} {'has' if one else 'have'} no use: {why}; {what}")

    def _told(self, option: str) -> str:
        value = self.values[option]
        several = value if isinstance(value, list | tuple) else (value,)
        return option if isinstance(value, bool) else " ".join([option, *(str(getattr(v, "value", v)) for v in several)])


def repeated(words: Iterable[str], command: Any) -> list[str]:
    """The words with an option repeated before each of its values, `--part a b` as `--part a --part b`, if the help of
    typer's `command` shows its value with two dots, as in `PART ..`."""
    several = {name for one in command.params if (one.metavar or "").endswith("..") for name in one.opts}
    found, option = list[str](), ""
    for word in words:
        if word.startswith("-"):
            option = word if word in several else ""
        elif option and found[-1] != option:
            found.append(option)
        found.append(word)
    return found
