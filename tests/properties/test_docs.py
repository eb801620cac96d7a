"""docs/fuzzing.md: its laws and strategies are those of the code, its jobs call the command with options that it has."""

import re
from pathlib import Path

import typer

from property_tests import strategies
from property_tests.cli import app
from property_tests.laws.decoder_laws import DECODER_LAWS
from property_tests.laws.recurrence_laws import LAWS

PAGE = (Path(__file__).parents[2] / "docs" / "fuzzing.md").read_text(encoding="utf-8")
RELATIONS = set(range(1, 23))
"""Those of the catalogue: each has a law."""


def rows(of: str) -> list[tuple[str, tuple[str, ...]]]:
    """The laws of the table, of recurrences or of decoders, with the faults beside them."""
    found = re.findall(rf"^\| [\d, ]+\. .* \| `(\w+)` \| {of} \| (.*) \|$", PAGE, re.MULTILINE)
    return [(law, tuple(re.findall(r"`(\w+)`", faults))) for law, faults in found]


def test_the_table_of_laws_is_that_of_the_code() -> None:
    assert sorted(rows("recurrences")) == sorted((law.name, law.kills) for law in LAWS)
    assert sorted(rows("decoders")) == sorted((law.name, law.kills) for law in DECODER_LAWS)


def test_every_relation_has_a_law() -> None:
    numbers = re.findall(r"^\| ([\d, ]+)\. .* \| `\w+` \| (?:recurrences|decoders) \|", PAGE, re.MULTILINE)
    assert {int(n) for named in numbers for n in named.split(", ")} == RELATIONS
    for law in (*LAWS, *DECODER_LAWS):
        named = re.search(rf"^\| ([\d, ]+)\. .* \| `{law.name}` \|", PAGE, re.MULTILINE)
        assert named
        assert str(law.holds.__doc__).startswith(f"{named[1]}.")


def test_the_table_of_strategies_is_that_of_the_module() -> None:
    named = re.findall(r"^\| `(\w+)` \| ", PAGE.split("## Strategies")[1].split("\n## ")[0], re.MULTILINE)
    assert named == [line.split()[0] for line in str(strategies.__doc__).splitlines() if line.startswith("    ")]


def test_the_jobs_call_the_command_with_options_that_it_has() -> None:
    """Of the page's first lines, SLURM's and Kubernetes': every call is read by the command's own parser."""
    joined = re.sub(r"\\\n\s*|\n\s+(?=--)", " ", PAGE)
    calls = re.findall(r"^[ -]*(ssmspec fuzz --.*)$", joined, re.MULTILINE)
    assert len([call for call in calls if "--shard" in call]) == 2
    command = typer.main.get_command(app)
    for call in calls:
        words = re.sub(r'\$\(\(.*?\)\)|"|\$\w+', "0", call.split("#")[0]).split()[2:]
        words = ["1of2" if before == "--shard" else word for before, word in zip(["", *words], words, strict=False)]
        assert command.make_context("fuzz", words).params["minutes"] > 0
