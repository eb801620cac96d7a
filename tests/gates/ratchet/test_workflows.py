"""What a stranger could use in a workflow: rights, actions that change under their name, text that a shell reads."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.y*ml"))
FILES = [*WORKFLOWS, ROOT / "action.yml"]
SIGNS = {"release": {"id-token": "write"}}
"""The workflow of which a job may sign in at the index of packages; `tests/docs/test_release.py` says what this job does."""
PINNED = r"[\w./-]+@[0-9a-f]{40}"


def wrong_with(held: dict[str, Any]) -> list[str]:
    """What is wrong with a workflow or an action."""
    found = list[str]()
    if "jobs" in held and held.get("permissions") != {"contents": "read"}:
        found.append("it may do more than read")
    jobs = held["jobs"].values() if "jobs" in held else [held["runs"]]
    for step in (step for job in jobs for step in job["steps"]):
        if "uses" in step and not re.fullmatch(PINNED, step["uses"]):
            found.append(f"{step['uses']} is no commit")
        if (
            step.get("uses", "").startswith("actions/checkout@")
            and step.get("with", {}).get("persist-credentials") is not False
        ):
            found.append("the token stays in the checkout")
        if "${{" in step.get("run", ""):
            found.append(f"a shell reads {step['run'][:60]}")
    own = {name: job["permissions"] for name, job in held.get("jobs", {}).items() if "permissions" in job}
    return found + [f"{name} has rights of its own" for name, rights in own.items() if rights != SIGNS.get(held["name"])]


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_a_workflow_reads_and_takes_nothing_that_changes(path: Path) -> None:
    assert wrong_with(yaml.safe_load(path.read_text())) == []


def test_the_hash_of_an_action_and_its_version_are_the_same_everywhere() -> None:
    named = {tuple(re.findall(r"uses: (\S+)@(\S+)  # (v[\d.]+)$", path.read_text(), re.MULTILINE)) for path in FILES}
    assert sum(map(len, named)) > 5
    assert all(
        len(re.findall("uses:", path.read_text())) == len(re.findall(r"uses: .*  # v", path.read_text())) for path in FILES
    )
    every = {one for some in named for one in some}
    assert len(every) == len({action for action, _, _ in every}) == 5


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("permissions: {contents: read}", "", "it may do more than read"),
        ("permissions: {contents: read}", "permissions: write-all", "it may do more than read"),
        ("@11bd71901bbe5b1630ceea73d27597364c9af683", "@v4", "actions/checkout@v4 is no commit"),
        (", persist-credentials: false", "", "the token stays in the checkout"),
        ('"$ENVIRONMENT"', "${{ matrix.environment }}", "a shell reads python3"),
        ("    timeout-minutes: 120", "    permissions: {contents: write}", "test has rights of its own"),
    ],
)
def test_a_planted_fault_in_a_workflow_is_caught(before: str, after: str, said: str) -> None:
    text = (ROOT / ".github/workflows/nightly.yml").read_text()
    assert before in text
    assert any(wrong.startswith(said) for wrong in wrong_with(yaml.safe_load(text.replace(before, after))))
