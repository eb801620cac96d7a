"""An engine as a program: one that is dead, hangs or lies is told as that, and leaves nothing behind."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.engines.errors import EngineDied, EngineFailed, EngineRefused
from conformance.engines.program import Program
from conformance.engines.protocol import Options, Request

STARTED = {"name": "few", "version": "1", "dtype": "float32", "can": []}
REQUEST = Request(ids=(1, 2), most=2)


def program(folder: Path, answers: list[object], behind: str = "") -> list[str]:
    """A program that answers each line by the next of `answers`, then does what stands `behind`."""
    path = folder / "engine.py"
    lines = [answer if isinstance(answer, str) else json.dumps(answer) for answer in answers]
    path.write_text(
        f"import sys, time, os\nfor said in {lines!r}:\n    sys.stdin.readline()\n    print(said, flush=True)\n"
        f"sys.stdin.readline()\n{behind}\n"
    )
    return [sys.executable, "-S", "-E", str(path)]


@contextmanager
def started(command: list[str], answering: float = 20.0) -> Iterator[Program]:
    """An engine that has started; it is closed, and has ended."""
    engine = Program(command, answering=answering)
    try:
        assert engine.start("model", Options()).name == "few"
        yield engine
    finally:
        engine.close()
    assert engine.child.returncode is not None


def test_an_answer_arrives(tmp_path: Path) -> None:
    answers = [STARTED, {"answers": [{"ids": [3, 4], "logprobs": [-0.5, None]}]}]
    with started(program(tmp_path, answers)) as engine:
        (answer,) = engine.generate((REQUEST,))
    assert (answer.ids, answer.logprobs) == ((3, 4), (-0.5, None))


@pytest.mark.parametrize(
    ("answers", "behind", "says"),
    [
        ([STARTED], "sys.exit(7)", "exit code 7"),
        ([STARTED], "print('last words', file=sys.stderr); os.kill(os.getpid(), 11)", "last words"),
        ([STARTED], "time.sleep(60)", "no answer within"),
        ([STARTED, "nonsense"], "", "that is not an answer: nonsense"),
        ([STARTED, {"answers": []}], "", "0 answers to 1 requests"),
        ([STARTED, {"answers": [{"ids": [1, 2, 3]}]}], "", "3 tokens where 2 were the most"),
        ([STARTED, {"answers": [{"ids": [1], "logprobs": [-1.0, -2.0]}]}], "", "2 log-probabilities of 1 tokens"),
        ([STARTED, {"answers": [{"ids": [1], "drafted": 1, "accepted": 2}]}], "", "2 of 1 drafts"),
        ([STARTED, {"answers": [{"ids": ["1"]}]}], "", "ids"),
        ([STARTED, '{"answers": [{"ids": [1], "logprobs": [NaN]}]}'], "", "that is not an answer"),
        ([STARTED, {"answers": [{"ids": [1], "passed": True}]}], "", "passed"),
        ([STARTED, '{"answers": [{"ids": [1]}]}\n{}'], "", "without a question"),
    ],
)
def test_what_is_no_answer_ends_the_engine_and_is_told(answers: list[object], behind: str, says: str, tmp_path: Path) -> None:
    answering = 2.0 if "sleep" in behind else 20.0
    raised = pytest.raises(EngineDied, match=says)
    with started(program(tmp_path, answers, behind), answering) as engine, raised:
        engine.generate((REQUEST,))
        engine.generate((REQUEST,))  # the question that nobody had asked


def test_errors_and_refusals_leave_the_engine_alive(tmp_path: Path) -> None:
    answers = [STARTED, {"error": "IndexError"}, {"refused": "no seeds"}, {"answers": [{"ids": [1]}]}]
    with started(program(tmp_path, answers)) as engine:
        for error, said in ((EngineFailed, "IndexError"), (EngineRefused, "no seeds")):
            with pytest.raises(error, match=said):
                engine.generate((REQUEST,))
        assert engine.generate((REQUEST,))[0].ids == (1,)


def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(EngineDied), started(["/no/such/engine"]):
        pytest.fail("it started")


def test_the_judges_environment_stays_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONSTRAINT", "ours.txt")
    path = tmp_path / "engine.py"
    path.write_text(
        "import json, os, sys\nfound = [n for n in os.environ if n.startswith(('PIP_', 'PYTHON'))]\n"
        "sys.stdin.readline()\nprint(json.dumps({'refused': str(found)}), flush=True)\n"
    )
    engine = Program([sys.executable, "-S", str(path)])
    with pytest.raises(EngineRefused, match=r"\[\]"):
        engine.start("model", Options())
    engine.close()


def test_transformers_drafts_for_llama_without_changing_its_text(tmp_path: Path) -> None:
    """Its environment is ours here; `tox run -e engine-transformers` makes one of its own."""
    from conformance.engines.checkpoint import read
    from conformance.engines.judge import Judge
    from conformance.engines.known import opener
    from conformance.engines.small import pair

    target, _ = pair("llama", tmp_path)
    judge = Judge(opener("transformers", sys.executable, 240.0), str(target), read(target), 6)
    found = judge.run({"ngram-4": Options(speculation="ngram")})
    assert not found.red, found.failures
    assert found.outcome("plain", "tokens") == found.outcome("plain", "log-probabilities") == "passed"
    assert found.outcome("ngram-4", "speculation") == "passed"
