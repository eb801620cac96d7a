"""Real outputs replayed with n-gram drafting: what is accepted is what the outputs say, and nothing else counts."""

import json
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers
from typer.testing import CliRunner

from conformance.refusal import REFUSED
from perf_gates import cli
from perf_gates.verdicts.measured import Results
from perf_gates.verdicts.traces import Replayed, Trace, TraceError, accepted, read, replay, table, tokens_of


def test_tokens_are_bytes_or_words_with_their_spaces() -> None:
    assert tokens_of("aé", "byte", {}) == (97, 195, 169)
    known: dict[str, int] = {}
    assert tokens_of("to be  or to be", "word", known) == (0, 1, 2, 3, 1)
    assert list(known) == ["to", " be", "  or", " to"]


@pytest.mark.parametrize(
    "text", ["It's 2 days: don't\n    x_1 = f(aé)  \n", "  \t\n\n'll've__init__(self,x2)٣ 東京\u00a0 .\n "]
)
def test_pieces_are_those_of_the_tokenizers_of_gpt_2(text: str) -> None:
    """As the library splits it; nothing of the text is lost."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str(text)
    known: dict[str, int] = {}
    numbers = tokens_of(text, "piece", known)
    assert [list(known)[n] for n in numbers] == [text[start:end] for _, (start, end) in split]


def test_an_output_that_repeats_its_prompt_is_accepted_whole() -> None:
    cycle = tuple(range(10)) * 3
    found = replay(Trace("t", cycle, cycle + cycle), 6, 1)
    assert (found.tokens, found.steps) == (60, -(-60 // 7))


def test_an_output_of_new_tokens_is_decoded_plainly() -> None:
    found = replay(Trace("t", (0,), tuple(range(1, 40))), 6, 2)
    assert (found.steps, found.tau) == (39, 1.0)


def test_the_better_of_two_chains_counts() -> None:
    """After 5 came 1 2 twice and 3 4 once: one chain takes the first, two chains have the second as well."""
    prompt = (5, 1, 2, 9, 5, 1, 2, 9, 5, 3, 4, 9, 8, 5)
    steps = {drafts: replay(Trace("t", prompt, (3, 4, 7)), 2, drafts).steps for drafts in (1, 2)}
    assert steps == {1: 2, 2: 1}


def test_the_last_token_is_the_targets_own() -> None:
    assert accepted((1, 2, 3), (1, 2, 3)) == 3
    assert accepted((1, 9, 3), (1, 2, 3)) == 1
    assert replay(Trace("t", (1, 2, 3, 1), (2, 3)), 2, 1).steps == 1


def test_a_folder_of_texts_and_lines_is_read_and_what_is_no_trace_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 80)
    (tmp_path / "b.jsonl").write_text(json.dumps({"prompt": "ab", "output": "abab"}) + "\n")
    assert [(t.name, len(t.output)) for t in read(tmp_path, "byte")] == [("a.txt", 16), ("b.jsonl:1", 4)]
    with pytest.raises(TraceError, match="must be one of byte, word, piece"):
        read(tmp_path, "pixel")
    (tmp_path / "b.jsonl").write_text('{"prompt": "ab"}\n')
    with pytest.raises(TraceError, match="line 1: KeyError"):
        read(tmp_path, "byte")
    with pytest.raises(TraceError, match=r"has no \*\.txt"):
        read(tmp_path / "nowhere", "byte")


def test_the_speed_up_is_that_of_the_measured_steps(tmp_path: Path) -> None:
    timings = [
        {"model": "mamba2-2.7b", "operation": name, "batch": 1, "us": us}
        for name, us in (("plain, window of 1", 1000.0), ("end to end PNG(6,2)", 1500.0))
    ]
    (tmp_path / "bench.json").write_text(json.dumps({"machine": {}, "timings": timings}))
    lines = list(table([Replayed("a", 30, 10), Replayed("b", 10, 10)], Results(tmp_path), 6, 2))
    assert lines[-3:] == [
        "| all | 40 | 20 | 2.00 |",
        "",
        "Traces, mamba2-2.7b: speed-up 1.33 at tau 2.00, with the measured steps of end to end PNG(6,2).",
    ]


def test_the_command_prints_the_table_and_refuses_a_folder_without_traces(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be " * 10)
    run = CliRunner()
    found = run.invoke(cli.app, ["traces", "--traces", str(tmp_path), "--tokens", "byte"])
    assert found.exit_code == 0
    assert "| all |" in found.output
    assert run.invoke(cli.app, ["traces", "--traces", str(tmp_path / "none")]).exit_code == REFUSED
