"""Numbered equations of docstrings, which the site would run together, become blocks of code (mkdocs.yml)."""

import re
from typing import Any

import griffe

NUMBERED = re.compile(r"^\S.* \(\d+\)$")


class Equations(griffe.Extension):
    """Puts runs of lines that end with a number in brackets into a fence."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text, its runs of two and more numbered lines in a fence."""
    out: list[str] = []
    run: list[str] = []
    for line in [*text.split("\n"), ""]:
        if NUMBERED.match(line):
            run.append(line)
            continue
        out += ["", "```text", *run, "```", ""] if len(run) > 1 else run
        out.append(line)
        run = []
    return "\n".join(out[:-1])
