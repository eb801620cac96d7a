"""Speculation on real text: what is forced, compared, judged and reported; each part runs on a small model."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conformance.main import run_command
from perf_gates.real_text import __main__ as command
from perf_gates.real_text import ahead, corpus, judge, parts, report, runs, texts, training, ways
from perf_gates.real_text.forced import Forced, table
from perf_gates.real_text.runs import Clock, Row, Table, compared, measured
from perf_gates.real_text.texts import Text
from perf_gates.real_text.ways import CHOSEN, FORCED, PLAIN, Models, Way, plain_at
from perf_gates.verdicts.traces import TraceError
from ssmspec_fast.bench.models import random_model
from ssmspec_fast.engine.traces import Exact

MODEL = Models(random_model("tiny", torch.float32, "cpu"), {})
CYCLE = Text("cycle", (5, 1, 2, 3, 4, 5), (1, 2, 3, 4, 5) * 6)
NEW = Text("new", (7, 8), tuple(range(10, 40)))


def rows_of(given: list[Text], some: list[Way], batch: int = 1) -> list[Row]:
    held, clock = Table("a"), Clock(60)
    measured(held, clock.until, clock, some, MODEL, given, batch, "texts", table(given, "cpu"))
    return held.rows


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "ROUNDS", 1)


# --- forced tokens ---


@pytest.mark.parametrize("way", [*parts.both(parts.NGRAM, parts.LOOKUP, parts.TREE, parts.RING), plain_at(0.0)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_emitted_and_drafts_are_accepted_where_they_equal_it(way: Way, temperature: float) -> None:
    """Of a cycle nearly every draft, of new tokens none, whatever the random model says. The chooser goes by the times of
    this machine: it may draft always, at times, or never."""
    given = [CYCLE, NEW]
    found = rows_of(given, [way.sampled(temperature) if temperature else way])
    for row in found:
        assert (row.different, row.ties, row.compared) == (0, 0, 60)
        cycle, new = (tokens / windows for _, tokens, windows in row.each)
        assert new == 1.0
        assert {PLAIN: cycle == 1.0, FORCED: cycle > 1.5, CHOSEN: cycle >= 1.0}[row.how]


def test_a_planted_force_that_accepts_every_draft_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(self: Any, proposal: Any, logits: Any, sequences: Any, operations: Any) -> Any:
        tokens = proposal.window.tokens
        logits.scatter_(-1, torch.cat([tokens[:, 1:], tokens[:, :1]], 1)[..., None], 1e4)
        return self.inner(proposal, logits, sequences, operations)

    monkeypatch.setattr(Forced, "__call__", everything)
    assert all(row.different == 2 for row in rows_of([CYCLE, NEW], [parts.NGRAM]))


def test_several_rows_are_forced_to_their_own_texts() -> None:
    given = [CYCLE, NEW, replace(CYCLE, prompt=(9, 9)), replace(NEW, output=NEW.output[:7])]
    for row in rows_of(given, [parts.LOOKUP, parts.TREE], batch=2):
        assert (row.different, row.tokens) == (0, 97)


# --- what is compared, and what is rounding ---


def test_tokens_are_compared_up_to_the_first_difference() -> None:
    assert compared((1, 2, 3), (1, 2, 3)) == (3, True)
    assert compared((1, 2, 3), (1, 9, 3)) == (2, False)
    assert compared((1, 2), (1, 2, 3)) == (2, False)


def test_a_difference_is_excused_only_within_the_rounding() -> None:
    exact = np.array([1.0, 1.01, -3.0, 0.9])
    rounded = exact + np.array([0.004, -0.006, 0.001, 0.0])
    assert judge.greedy(exact, rounded, 0, 1) <= 1 < judge.greedy(exact, rounded, 0, 3)
    assert judge.greedy(exact, rounded + np.nan, 0, 1) == np.inf
    assert judge.greedy(exact, exact, 0, 0) == 0
    assert judge.greedy(exact, exact, 0, 3) == np.inf


def test_a_drawn_token_is_excused_only_next_to_its_interval() -> None:
    exact = np.log([0.25, 0.25, 0.5])
    rounded = np.log([0.2501, 0.2499, 0.5])
    assert judge.sampled(exact, rounded, 0, 1, 0.2501) <= 1 < judge.sampled(exact, rounded, 0, 1, 0.26)
    assert judge.sampled(exact, rounded, 0, 2, 0.2501) > 1
    assert judge.sampled(exact, rounded * np.nan, 0, 1, 0.2501) == np.inf


# --- texts ---


def test_edited_code_follows_its_seed_and_resembles_its_file() -> None:
    encode: Callable[[str], list[int]] = lambda text: list(text.encode())  # noqa: E731
    one, same, other = (texts.edited(3, 100, encode, seed) for seed in (1, 1, 2))
    assert one == same != other
    assert all(len(text.output) == 100 and len(text.prompt) == 200 for text in one)
    assert any(text.output != text.prompt[:100] for text in texts.edited(3, 2000, encode))


def test_recorded_outputs_are_cut_and_counted(tmp_path: Path) -> None:
    lines = [{"prompt": "a b c", "output": " x" * 300}, {"prompt": "a b", "output": " y z"}]
    (tmp_path / "some.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "a"}))
    (found,) = texts.recorded(tmp_path, 200)
    assert (len(found.output), found.loops) == (200, True)
    assert found.tau > 6
    assert not replace(found, output=tuple(range(200))).loops
    with pytest.raises(TraceError, match=r"no \*\.jsonl with outputs of 301 tokens"):
        texts.recorded(tmp_path, 301)


# --- the trained pair ---


def test_a_trained_model_is_what_the_engine_runs(tmp_path: Path) -> None:
    """Its loss falls, and the engine's float64 forward of its file has its logits, up to the file's bf16."""
    (tmp_path / "text").mkdir()
    for n in range(12):
        (tmp_path / "text" / f"{n}.py").write_text(f"def f{n}(x):\n    return x + {n}\n" * 40)
    text = corpus.read([tmp_path / "text"], 300)
    assert text.tokenizer.decode(text.train[: text.train.tolist().index(corpus.END)].tolist()).startswith("def f")
    recipe = training.Recipe("t", 2, 64, 300, seconds=6.0, rows=2, length=64, rate=3e-3)
    model, found = training.trained(recipe, text.train, "cpu")
    assert found["steps"] == 0 or found["parameters"] > 1e5
    training.save(model, recipe, tmp_path / "model")
    tokens = text.train[:65].tolist()
    exact = Exact(tmp_path / "model")(tokens[:1], tokens[1:])
    with torch.no_grad():
        ours = model(torch.tensor([tokens[:-1]]))[0].double().numpy()
    assert np.abs(ours - exact).max() < 0.02 * np.abs(exact).max()


def test_training_follows_its_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mixture is least where the student's law is the teacher's and the data's."""
    logits, targets = torch.zeros(1, 1, 3), torch.tensor([[0]])
    teacher = torch.tensor([[[9.0, 0.0, 0.0]]])
    assert training.entropy(teacher, targets, teacher) < training.entropy(logits, targets, teacher)
    assert training.entropy(logits, targets, None) == pytest.approx(np.log(3))
    shares = [training.schedule(share / 100) for share in range(101)]
    assert (shares[0], max(shares), shares[-1]) == (0.0, 1.0, pytest.approx(0.05))


def test_what_is_compiled_ahead_is_what_is_timed() -> None:
    """Each way runs on models of two layers, and what fails is said."""
    pair = parts.Pair(300, 64, 4, (("1 layer", 1),))
    for way, batch in [(parts.RING.chosen(), 2), (Way("drafter", "1 layer", 2, rule="multi-step", temperature=1.0), 1)]:
        assert ahead.once(parts.untrained, "cpu", pair, way, batch, False) == ""
    assert ahead.once(ahead.random_target, "cpu", "tiny", parts.TREE, 2, True) == ""
    wrong = Way("wrong", "ngram", 2, tree="2", method="joint")
    assert "joint verifies chains" in ahead.once(ahead.random_target, "cpu", "tiny", wrong, 1, True)


# --- time ---


def test_a_block_ends_with_its_time_and_lists_what_it_lacks() -> None:
    now = [0.0]

    def tick() -> float:
        now[0] += 1.0
        return now[0]

    held, clock = Table("a"), Clock(1, tick)
    measured(held, 3.0, clock, [parts.NGRAM, parts.LOOKUP], MODEL, [CYCLE, NEW], 1, "texts", table([CYCLE, NEW], "cpu"))
    assert [row.way for row in held.rows] == ["plain", parts.NGRAM.name]
    assert held.skipped == [
        "texts, batch 1, temperature 0: prompt lookup, chain of 15, forced", "texts, batch 1, temperature 0: new",
    ]  # fmt: skip
    assert all(row.tokens == 30 for row in held.rows)


# --- the report ---


def row(way: str, how: str, seconds: float, **more: Any) -> Row:
    each = tuple((seconds / 2, 50, 25) for _ in range(2))
    base = Row("recorded outputs", way, how, 1, 0.0, "greedy", 100, 50, seconds, each, 100, 0, 0, 0.0)
    return replace(base, **more)


def held(forced: float, chosen: float, different: int = 0) -> dict[str, Any]:
    name = parts.NGRAM.name
    rows = [row("plain", "plain", 2.0), row(name, "forced", forced), row(name, "chosen", chosen, different=different)]
    about = {"texts of batch 1": [["x", 2.5, False], ["y", 1.5, False]]}
    return {"about": about, "rows": rows, "skipped": []}


@pytest.mark.parametrize(
    ("forced", "chosen", "different", "missed"),
    [(1.0, 1.0, 0, []), (1.5, 1.5, 0, [0]), (1.0, 2.1, 0, [1, 2, 3]), (1.0, 1.2, 0, [3]), (1.0, 1.0, 1, [4])],
)
def test_each_target_is_missed_by_what_misses_it(forced: float, chosen: float, different: int, missed: list[int]) -> None:
    found = list(report.targets("a", held(forced, chosen, different)))
    assert [n for n, (_, reached) in enumerate(found) if not reached] == missed
    assert len(found) == 5


def test_nothing_measured_reaches_no_target() -> None:
    """NaN, and a twin that is missing, are not reached."""
    lonely = {"about": {}, "rows": [row("plain", "plain", 2.0), row("drafter", "forced", 1.9)], "skipped": []}
    said, reached = next(report.targets("b", lonely))
    assert (said, reached) == ("drafts by a model, greedy, batch 1: 1.05 times plain decoding, at least 1.3", False)
    assert "nan" in "".join(report.table(lonely["rows"]))


def test_the_command_refuses_what_it_cannot_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, said in (
        (["--part", "a"], "part a needs recorded outputs"),
        (["--part", "a", "--outputs", str(tmp_path / "no")], "is not a folder"),
        (["--minutes", "0"], "must be more than 0"),
    ):
        assert run_command(command.main, [*given, "--out", str(tmp_path / "out")]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_part_runs_and_its_table_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part c, with two texts of a few tokens."""
    short = parts.part_c
    monkeypatch.setattr(parts, "part_c", lambda minutes, held: short(minutes, held, prompts=2, length=12))
    monkeypatch.setattr(ways, "freed", lambda: None)
    assert run_command(command.main, ["--part", "c", "--minutes", "0.2", "--out", str(tmp_path)]) == 0
    found = report.read(tmp_path)["c"]
    assert found["rows"][0].way == "plain"
    assert "edited code" in report.text({"c": found})
    assert report.picture({"c": found}).startswith("<?xml")
