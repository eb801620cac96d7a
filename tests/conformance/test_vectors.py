"""The golden vectors: what their index says is there; a right implementation passes them, a wrong one fails; in C++ too."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from conformance.faults.catalogue import FAULTS
from conformance.faults.classes import CLASSES
from conformance.judge.verdict import compare
from conformance.suite import find
from conformance.vectors import generate
from conformance.vectors.generate import CONTRACTS, DRAWN, FOLDER, settled
from conformance.vectors.index import Index, Vector
from conformance.vectors.tensors import dump, named, read, upwards
from ssmspec_ref import ssd
from ssmspec_ref.contract import OPERATIONS
from ssmspec_ref.ssd import SSDParams, SSDToken

INDEX = Index.model_validate_json((FOLDER / "index.json").read_bytes())
EXAMPLE = FOLDER / "example"


def tensors(vector: Vector) -> dict[str, np.ndarray]:
    start = f"{vector.number}/"
    return {name.removeprefix(start): a for name, a in read(FOLDER / vector.file).items() if name.startswith(start)}


def test_the_schema_is_that_of_the_index() -> None:
    assert json.loads((FOLDER / "schema.json").read_bytes()) == Index.model_json_schema()
    assert INDEX.contracts == {name: str(contract) for name, contract in CONTRACTS.items()}


def test_every_pure_operation_has_vectors_and_all_are_small() -> None:
    assert {v.operation for v in INDEX.vectors} == {name for name in OPERATIONS if (FOLDER / f"{name}.safetensors").exists()}
    kinds = {"conv", "selective", "ssd", "delta", "shortconv", "mamba3", "attention", "acceptance", "draft"}
    assert {v.operation.split(".")[0] for v in INDEX.vectors} == kinds
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.suffix in (".safetensors", ".json")) < 2_600_000


def test_flags_name_bug_classes_and_planted_faults() -> None:
    faults = {(f.name, f.operation): f for f in FAULTS}
    flags = [(v, flag) for v in INDEX.vectors for flag in v.flags]
    assert all(faults[flag.fault, v.operation].bug_class == flag.bug_class for v, flag in flags)
    assert len({flag.bug_class for _, flag in flags}) > 20
    assert {flag.bug_class for _, flag in flags} <= set(CLASSES)


@pytest.mark.parametrize("vector", INDEX.vectors, ids=lambda v: v.case.replace("/", "|"))
def test_a_vector_holds_the_inputs_of_its_case_and_what_the_reference_gives(vector: Vector) -> None:
    """The values committed are judged as an implementation's: within the bound of every contract, and zeros are not."""
    specification, case = find(vector.case)
    held = tensors(vector)
    arguments = specification.draw(case, DRAWN)
    drawn = dict(pair for n, value in enumerate(arguments) for pair in named(value, str(n)))
    inputs = sorted(a.tobytes() for a in drawn.values() if isinstance(a, np.ndarray))
    assert inputs == sorted(held[f"in/{name}"].tobytes() for name in vector.inputs)
    for name, contract in CONTRACTS.items():
        expected = specification.expect(arguments, contract, None)
        assert [(e.name, e.axes, e.value.shape) for e in expected] == [(o.name, o.axes, o.shape) for o in vector.outputs]
        for want, told in zip(expected, vector.outputs, strict=True):
            value = held[f"out/{told.name}"].astype(np.float64)
            judged = held[f"judged/{told.name}"] if told.judged else np.ones(told.shape, dtype=bool)
            bound = np.zeros(told.shape) if told.exact else held[f"bound/{name}/{told.name}"].astype(np.float64)
            assert np.all((np.abs(value - want.value) <= want.bound) | ~judged)
            assert np.all(bound >= want.bound * (1 - 1e-5))
            assert np.all(bound <= want.bound * (1 + 1e-5))
    if vector.outputs[0].exact:
        return
    zeros = tuple(np.zeros(o.shape, dtype=np.float32) for o in vector.outputs)
    assert compare(specification.expect(arguments, CONTRACTS["fp32"], None), zeros, CONTRACTS["fp32"]).kind == "bound"


def test_a_vector_is_enough_to_run_the_operation() -> None:
    """From the file alone, without the suite."""
    for vector in (v for v in INDEX.vectors if v.operation == "ssd.step"):
        held = {
            name.removeprefix("in/"): a.astype(np.float64) for name, a in tensors(vector).items() if name.startswith("in/")
        }
        token = SSDToken(**{n: held.get(f"token.{n}") for n in ("x", "dt", "B", "C", "z")})
        limits = tuple(map(float, held["params.dt_limit"]))
        params = SSDParams(
            held["params.A"], held.get("params.D"), held.get("params.dt_bias"), bool(held["params.dt_softplus"]), limits
        )
        for out, value in zip(vector.outputs, ssd.step(held["S"], token, params), strict=True):
            assert np.all(np.abs(value - tensors(vector)[f"out/{out.name}"]) <= tensors(vector)[f"bound/fp32/{out.name}"])


def built(folder: Path, *flags: str) -> Path:
    """The example in C++, compiled."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.fail("no g++ and no clang++ on the path: apt-get install g++")
    program = folder / "judge_step"
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *flags, "-o", str(program)]
    subprocess.run([*command, str(EXAMPLE / "judge_step.cpp")], check=True)
    return program


STEP = FOLDER / "ssd.step.safetensors"


def judges(code: int, program: Path, vectors: Path, said: str) -> None:
    done = subprocess.run([program, vectors], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout + done.stderr


def test_the_example_in_cpp_builds_and_judges(tmp_path: Path) -> None:
    program = built(tmp_path)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(STEP.read_bytes()[:-8])
    judges(0, program, STEP, f"{sum(v.operation == 'ssd.step' for v in INDEX.vectors)} vectors, 0 failed")
    judges(2, program, cut, "lies beyond the end")
    judges(2, program, tmp_path / "none", "cannot be opened")


def test_the_example_in_cpp_fails_a_planted_fault(tmp_path: Path) -> None:
    judges(1, built(tmp_path, "-DPLANTED_FAULT"), STEP, "FAIL")


def test_a_rerun_keeps_last_bits_and_nothing_more() -> None:
    value = np.array([1.0, 2.0])
    kept = {"0/out/y": value}
    own = {"0/own/y": np.full(2, 1e-15)}
    assert settled({"0/out/y": value + 1.5e-15, **own}, kept)["0/out/y"] is value
    assert settled({"0/out/y": value + 1e-14, **own}, kept)["0/out/y"] is not value
    assert settled({"0/in/x": value + 2e-16}, {"0/in/x": value})["0/in/x"] is not value


def test_a_bound_in_float32_is_never_smaller_and_files_are_written_alike() -> None:
    bound = np.random.default_rng(0).uniform(1e-9, 1e-3, 1000)
    assert np.all(upwards(bound).astype(np.float64) >= bound)
    made = {"b": np.ones(3, dtype=np.float32), "a": np.zeros((), dtype=bool)}
    assert dump(made) == dump(dict(reversed(list(made.items()))))


def test_only_files_that_the_index_names_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a model in it lost the model."""
    index = INDEX.model_dump(mode="json")
    index["vectors"] = [index["vectors"][0] | {"file": name} for name in ("stale.safetensors", "../above.safetensors")]
    (tmp_path / "above.safetensors").touch()
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("stale.safetensors", "model.safetensors"):
        (folder / name).touch()
    monkeypatch.setattr(generate, "generate", lambda folder: {"index.json": b"{}"})
    generate.main(False, folder)
    assert {path.name for path in folder.iterdir()} == {"stale.safetensors", "model.safetensors", "index.json"}
    (folder / "index.json").write_text(json.dumps(index))
    generate.main(False, folder)
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "index.json"}
    assert (tmp_path / "above.safetensors").exists()
