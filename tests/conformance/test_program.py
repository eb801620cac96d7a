"""A program that speaks JSON lines is judged as any other; what it does wrong is an error of its case; the run goes on."""

import json
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from conformance.errors import AdapterUnavailable, ProgramError
from conformance.judge.verdict import Judgement
from conformance.run.load import PROGRAM, load
from conformance.run.plan import Selection, plan
from conformance.run.process import Process
from conformance.run.program import Program, arguments_of, plain
from conformance.run.sessions import METHODS, opened
from ssmspec_ref.contract import OPERATIONS, Verdict
from tests.commands import ROOT, reported

from .judging import of

EXAMPLE = ROOT / "docs" / "examples" / "program.py"


SOURCE = EXAMPLE.read_text()


def judged(folder: Path, source: str, count: int = 3, timeout: float = 20.0, operation: str = "ssd.step") -> list[Judgement]:
    """The first cases of a program, judged through a worker."""
    (folder / "program.py").write_text(source)
    with closing(Process(f"{PROGRAM}{sys.executable} {folder / 'program.py'}", timeout=timeout)) as process:
        jobs, _ = plan({"x": process.adapter}, Selection(operation=operation))
        return [of(job) for job in jobs[:count]]


def test_the_example_is_judged_and_passes(tmp_path: Path) -> None:
    words = ("--program", f"{sys.executable} {EXAMPLE}", "--tier", "smoke")
    reported(0, *words, report=tmp_path, said="9 pass")


def changed(old: str, new: str) -> str:
    assert SOURCE.count(old) == 1
    return SOURCE.replace(old, new)


def test_a_fault_in_a_program_is_found(tmp_path: Path) -> None:
    found = judged(tmp_path, changed("np.exp(dt * A)", "np.exp2(np.float32(1.44) * dt * A)"))
    assert [(j.verdict, j.kind) for j in found].count((Verdict.FAIL, "bound")) == 2
    assert {j.kind for j in found} == {"bound", ""}, "what a wrong constant does not reach passes"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('        case "call":\n', '        case "call":\n            sys.exit(7)\n', "the program ended with exit code 7"),
        (
            '        case "call":\n',
            '        case "call":\n            print("hello", flush=True)\n',
            "the program printed 'hello\\n', which is not an answer; its standard output must hold only answers",
        ),
        ('load_file(question["inputs"])', "1 / 0", "the program says: ZeroDivisionError: division by zero"),
        ('{"y": y, "S": S}', '{"y": y, "T": S}', ""),
        ('list(tensors)}', '["z"]}', "the outputs ['z'] cannot be read from the named file"),
    ],
)  # fmt: skip
def test_what_a_program_does_wrong_is_told_and_the_next_case_is_tried(tmp_path: Path, old: str, new: str, said: str) -> None:
    found = judged(tmp_path, changed(old, new))
    assert len(found) == 3
    assert all(j.message.startswith(said) for j in found)
    assert {(j.verdict, j.kind) for j in found} == ({(Verdict.FAIL, "error")} if said else {(Verdict.PASS, "")})


def test_a_program_that_refuses_what_its_limits_claim_fails(tmp_path: Path) -> None:
    found = judged(tmp_path, changed('            return {}, {"y"', '            return {"refused": "no"}, {"y"'))
    assert {(j.verdict, j.kind) for j in found} == {(Verdict.FAIL, "refused")}
    assert all(j.message.startswith("Unsupported: the program says: no") for j in found)


def test_a_program_that_hangs_is_ended_with_its_worker(tmp_path: Path) -> None:
    waits = changed('        case "call":\n', '        case "call":\n            import time; time.sleep(600)\n')
    found = judged(tmp_path, waits, count=1, timeout=1.0)
    assert (found[0].verdict, found[0].kind) == (Verdict.UNKNOWN, "timeout")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"function_ulp": 3', '"state": "fp8"', "state is 'fp8'"),
        ('"function_ulp": 3', '"speed": 3', "unexpected keyword argument 'speed'"),
        ('{"ssd.step": HAS', '{"ssd.stop": HAS', r"ssd\.stop is not an operation"),
        ('    "version": "0.1",\n', "", "'version' is missing"),
        ('"ssd.step": HAS', '"ssd.step": []', r"ssd\.step is \[\]; it must be a JSON object"),
    ],
)
def test_what_a_program_declares_wrongly_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(AdapterUnavailable, match=said):
        judged(tmp_path, changed(old, new))


def test_a_program_that_is_not_there_is_refused() -> None:
    with pytest.raises(AdapterUnavailable, match="no_such_program cannot be started"):
        Process(f"{PROGRAM}no_such_program")


def test_an_empty_command_and_a_missing_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AdapterUnavailable, match="is empty"):
        load(PROGRAM)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(AdapterUnavailable, match=r"pip install '../ssmspec\[program\]'"):
        load(f"{PROGRAM}true")


def test_every_operation_can_be_put_into_lines() -> None:
    for operation in OPERATIONS:
        assert all(name.isidentifier() for name in opened(operation) or arguments_of(operation)), operation
    assert arguments_of("ssd.scan_masked") == ("S", "window", "params", "live")
    assert opened("speculate.tree") == ("mixer", "state")
    assert METHODS["commit"] == ("advanced", "path")


def test_values_are_json() -> None:
    assert json.dumps(plain((0.0, float("inf"), np.int64(3), np.True_, None))) == '[0.0, "inf", 3, true, null]'


def test_a_question_to_a_program_that_ended_names_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("import sys; sys.exit('no device')")
    program = Program(f"{sys.executable} {tmp_path / 'p.py'}")
    with closing(program), pytest.raises(ProgramError, match=r"exit code 1 \| no device"):
        program.ask({"do": "declare"})


GENERATOR = """
import json, sys
import numpy as np
from safetensors.numpy import load_file, save_file

DECLARED = {"name": "an engine", "version": "0", "subjects": [{"name": "counts up", "operations": {"generate.greedy": {}}}]}
for line in sys.stdin:
    question = json.loads(line)
    if question["do"] == "declare":
        print(json.dumps(DECLARED), flush=True)
        continue
    prompts, values = load_file(question["inputs"])["prompts"], question["values"]
    tokens = (prompts[:, -1:] + np.arange(1, values["count"] + 1)) % 64
    made = {"tokens": tokens}
    if values["speculate"]:
        made |= {"proposed": np.array([PROPOSED]), "accepted": np.array([ACCEPTED])}
    save_file({name: np.ascontiguousarray(a.astype(np.int64)) for name, a in made.items()}, question["outputs"])
    print(json.dumps({"outputs": list(made)}), flush=True)
"""


@pytest.mark.parametrize(
    ("proposed", "accepted", "drafts", "said"),
    [
        (8, 3, (8, 3), ""),
        (8, 0, (8, 0), ""),
        (3, 8, None, "it accepted 8 of 3 drafts; count what was proposed, and what of it was accepted"),
    ],
)
def test_a_program_may_count_its_drafts(
    tmp_path: Path, proposed: int, accepted: int, drafts: tuple[int, int] | None, said: str
) -> None:
    source = GENERATOR.replace("PROPOSED", str(proposed)).replace("ACCEPTED", str(accepted))
    (found,) = judged(tmp_path, source, 1, operation="generate.greedy")
    assert (found.verdict, found.drafts) == (Verdict.FAIL if said else Verdict.PASS, drafts)
    assert said in found.message
