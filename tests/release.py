"""What a release publishes: both distributions of one version, built and checked.

    tox run -e release -- --tag v0.1.0 --out dist

With `--tag` the tag has to be the version, and the changelog has to give it a date. Without it nothing is published: it shows
whether the distributions can be built.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).parents[1]
PROJECTS: dict[str, tuple[str, ...]] = {".": (), "ssmspec_fast/checkpoints": ("--wheel",)}
"""The distributions by their folder, with options of `build`: the checkpoints' sources are those of the other one."""


def wrong_with(tag: str, root: Path = ROOT) -> list[str]:
    """Why the tree is no release of this tag ("": of none), in sentences; empty if nothing is wrong."""
    versions = {name: tomllib.loads((root / name / "pyproject.toml").read_text())["project"]["version"] for name in PROJECTS}
    (version, *_) = versions.values()
    found = []
    if len(set(versions.values())) > 1:
        found.append(f"pyproject.toml says {versions}; give both distributions one version")
    if tag and tag != f"v{version}":
        found.append(f"the tag is {tag}, the version {version}; tag v{version}, or change the version")
    first = re.search(r"^## (\S+) \((.*?)\)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if first is None or first[1] != version:
        found.append(f"CHANGELOG.md does not begin with {version}; write its section")
    elif tag and not re.fullmatch(r"\d{4}-\d\d-\d\d", first[2]):
        found.append(f"CHANGELOG.md gives {version} as {first[2]!r}; give the date, as in ## {version} (2027-01-31)")
    return found


def main(
    out: Annotated[Path, typer.Option(help="Folder for the distributions; it must not exist.")],
    tag: Annotated[str, typer.Option(help="The tag that is released, such as v0.1.0.")] = "",
) -> None:
    """Build and check what a release publishes. Exits with 2 if the tree is no release of the tag."""
    wrong = wrong_with(tag) + ([f"{out} exists; name a new folder"] if out.exists() else [])
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    if wrong:
        raise typer.Exit(2)
    for project, options in PROJECTS.items():
        build = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", str(out), str(ROOT / project)]
        subprocess.run(build, check=True)
    (code,) = out.glob(
        "ssmspec-*.whl"
    )  # the other one holds files that are equal on purpose: each checkpoint has its tokenizer
    subprocess.run([sys.executable, "-m", "check_wheel_contents", str(code.resolve())], check=True, cwd=ROOT)


if __name__ == "__main__":
    typer.run(main)
