"""The versions that GPU results are of: what is installed there, what the gates ask for, what the documents say."""

from pathlib import Path

from perf_gates.verdicts.gates import load

ROOT = Path(__file__).parents[3]


def pins(file: str) -> dict[str, str]:
    rows = (line.partition("==") for line in (ROOT / file).read_text().splitlines() if "==" in line and line[0] != "#")
    return {name: version for name, _, version in rows}


def test_a_gpu_installs_what_was_measured_and_for_the_rest_what_a_cpu_does() -> None:
    gpu, cpu, limits = pins("constraints-gpu.txt"), pins("constraints.txt"), load().limits
    assert (gpu.pop("torch"), gpu.pop("triton")) == (limits.torch, limits.triton)
    assert gpu == {name: version for name, version in cpu.items() if name not in ("torch", "triton")}
    for file in ("tox.ini", ".github/workflows/gpu.yml", ".github/workflows/gpu-gates.yml"):
        assert "constraints-gpu.txt" in (ROOT / file).read_text()


def test_the_readme_says_which_versions_are_timed_and_which_are_only_compiled() -> None:
    told = " ".join((ROOT / "README.md").read_text().split())
    assert f"with Triton {pins('constraints.txt')['triton']} they are compiled and tested on a CPU, but not timed" in told


def test_the_workflow_runs_on_push_nightly_and_by_hand_within_an_hour() -> None:
    text = (ROOT / ".github/workflows/gpu-gates.yml").read_text()
    for word in (
        "push:",
        "schedule:",
        "workflow_dispatch:",
        "timeout-minutes: 60",
        "upload-artifact",
        "tox run -e gpu-gates",
    ):
        assert word in text
