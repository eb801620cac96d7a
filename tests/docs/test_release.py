"""A release is of one version, of its tag and of a dated section of the changelog; only its last job may publish."""

from pathlib import Path

import pytest
import yaml
from typer import Typer
from typer.testing import CliRunner

from tests.release import PROJECTS, ROOT, main, wrong_with

JOBS = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]


def tree(folder: Path, versions: tuple[str, str] = ("1.2.3", "1.2.3"), changes: str = "## 1.2.3 (2027-01-31)\n") -> Path:
    """What a release reads of a tree."""
    for name, version in zip(PROJECTS, versions, strict=True):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n{changes}")
    return folder


def test_a_dated_tree_is_a_release_of_its_tag(tmp_path: Path) -> None:
    assert wrong_with("v1.2.3", tree(tmp_path)) == []


@pytest.mark.parametrize(
    ("tag", "given", "said"),
    [
        ("v1.2.4", {}, "the tag is v1.2.4, the version 1.2.3"),
        ("1.2.3", {}, "the tag is 1.2.3"),
        ("v1.2.3", {"versions": ("1.2.3", "1.2.2")}, "give both distributions one version"),
        ("", {"versions": ("1.2.3", "1.2.2")}, "give both distributions one version"),
        ("v1.2.3", {"changes": "## 1.2.3 (unreleased)\n"}, "'unreleased'; give the date"),
        ("v1.2.3", {"changes": "## 1.2.2 (2027-01-01)\n"}, "does not begin with 1.2.3"),
    ],
)
def test_another_tree_is_refused_with_the_reason(tmp_path: Path, tag: str, given: dict[str, str], said: str) -> None:
    assert any(said in sentence for sentence in wrong_with(tag, tree(tmp_path, **given)))  # type: ignore[arg-type]


def test_this_tree_can_be_built_without_a_tag_and_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    assert wrong_with("") == []
    app = Typer()
    app.command()(main)
    refused = CliRunner().invoke(app, ["--out", str(tmp_path)])
    assert (refused.exit_code, "name a new folder" in refused.stderr) == (2, True)


def test_only_the_job_that_publishes_may_sign_and_it_runs_nothing_of_the_tree() -> None:
    assert "permissions" not in JOBS["build"]
    publish = JOBS["publish"]
    assert (publish["permissions"], publish["needs"], publish["if"]) == (
        {"id-token": "write"},
        "build",
        "github.ref_type == 'tag'",
    )
    assert [step.get("uses", "").partition("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]
    commands = [step["run"] for step in JOBS["build"]["steps"] if "run" in step]
    assert any("tox run -e whole" in command for command in commands), "a release needs a whole run of its own commit"
