"""The recipes of the page on campaigns, which need machines that no test has: their syntax, options and field names hold."""

import re
import shlex
import subprocess
from typing import Any

import pytest
import yaml
from ray.scripts.scripts import start

from tests.commands import ROOT

PAGE = (ROOT / "docs" / "campaigns.md").read_text()
INDENTED = "\n".join(re.findall(r"^    (.*)$", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL), re.MULTILINE))
(SLURM,), (KUBERAY,) = (re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("bash", "yaml"))
FIELDS: dict[str, set[str]] = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"rayVersion", "gcsFaultToleranceOptions", "headGroupSpec", "workerGroupSpecs"},
    "spec.gcsFaultToleranceOptions": {"redisAddress", "redisUsername", "redisPassword", "externalStorageNamespace"},
    "spec.headGroupSpec": {"template", "rayStartParams", "serviceType"},
    "spec.workerGroupSpecs": {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"},
}
"""Fields of a RayCluster that a recipe may have. Source: the reference of KubeRay's API, ray.io/v1."""


OPTIONS = {option for parameter in start.params for option in parameter.opts}
"""Of `ray start`."""


def unknown(held: dict[str, Any], place: str = "") -> list[str]:
    """Fields that the API does not have, and parameters that `ray start` does not have."""
    found = []
    for name, value in held.items():
        inner = f"{place}.{name}".strip(".")
        if name not in FIELDS[place]:
            found.append(inner)
        elif name == "rayStartParams":
            found += [f"{inner}.{option}" for option in value if f"--{option}" not in OPTIONS]
        elif inner in FIELDS:
            found += [field for one in (value if isinstance(value, list) else [value]) for field in unknown(one, inner)]
    return found


def unknown_options(script: str) -> list[str]:
    """Options that a line gives to `ray start`, which it does not have."""
    lines = re.findall(r"ray start ([^&;|'`\n]*)", script.replace("\\\n", " "))
    assert lines
    words = [word.partition("=")[0] for line in lines for word in shlex.split(line, comments=True)]
    return [word for word in words if word.startswith("--") and word not in OPTIONS]


@pytest.mark.parametrize("script", [SLURM, INDENTED], ids=["slurm", "lines"])
def test_a_script_is_read_by_the_shell_and_its_options_are_those_of_ray(script: str) -> None:
    made = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert unknown_options(script) == []


def test_the_cluster_of_kubernetes_has_fields_that_kuberay_has() -> None:
    held = yaml.safe_load(KUBERAY)
    assert (held["apiVersion"], held["kind"]) == ("ray.io/v1", "RayCluster")
    assert unknown(held) == []
    groups = [held["spec"]["headGroupSpec"], *held["spec"]["workerGroupSpecs"]]
    assert all(pod["image"] for group in groups for pod in group["template"]["spec"]["containers"])


def test_planted_slips_in_a_recipe_are_seen() -> None:
    assert unknown_options(SLURM.replace("--num-gpus", "--gpus")) == ["--gpus", "--gpus"]
    slipped = yaml.safe_load(KUBERAY.replace("workerGroupSpecs", "workerGroups").replace("num-cpus", "cpus"))
    assert unknown(slipped) == ["spec.headGroupSpec.rayStartParams.cpus", "spec.workerGroups"]
