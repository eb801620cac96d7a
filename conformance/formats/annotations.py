"""Findings as workflow commands of GitHub Actions: each is shown beside its file in a pull request.

::error file=my_kernels.py,line=1,title=fail%3A ssd.step of ssd::cause: ..%0Adiffers: ..
"""

from .finding import Finding

COMMANDS = {"fail": "error", "unknown": "warning", "known-failure": "notice"}


def annotations(found: list[Finding]) -> str:
    """A line for each finding; "" if there is none."""
    return "".join(f"{_command(one)}\n" for one in found)


def _command(one: Finding) -> str:
    where = {"file": one.file, "line": str(one.line)} if one.file else {}
    properties = ",".join(f"{name}={_property(value)}" for name, value in (where | {"title": one.title}).items())
    return f"::{COMMANDS[one.verdict]} {properties}::{_text(one.text)}"


def _text(said: str) -> str:
    """Text on one line, which can neither end the command nor begin another."""
    return said.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _text(value).replace(":", "%3A").replace(",", "%2C")
