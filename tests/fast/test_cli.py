"""`ssmspec generate` and the Python API behind it: what they print, what they refuse, how they end."""

import json
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import ssmspec_fast
from conformance import main
from ssmspec_fast.cli import generate as cli
from ssmspec_fast.cli.refusal import REFUSED
from ssmspec_fast.cli.shipped import SHIPPED
from ssmspec_fast.device import check_device
from ssmspec_fast.engine.emitted_windows import EmittedWindow, count
from ssmspec_fast.errors import BrokenFile, MemoryRefused, TokenizerMismatch
from ssmspec_fast.models.build import Parts
from ssmspec_fast.models.tokenizer import Stream, Tokenizer
from ssmspec_fast.training import tokens
from ssmspec_ref.errors import EmptyWindow, LengthError, ParameterError, SpecError, Unsupported

from .commands import called
from .runs import emitted, engine

ROOT = Path(__file__).parents[2]
PROMPTS = ["def mean(", "def fir", "x"]


@pytest.fixture(scope="module")
def plain(trained: Path) -> ssmspec_fast.Generation:
    loaded = ssmspec_fast.load(trained / "mamba2")
    return loaded.generate(PROMPTS, loaded.settings(20))


call = partial(called, cli.app)


def speculating(trained: Path, **given: Any) -> ssmspec_fast.Generator:
    return ssmspec_fast.load(trained / "mamba2", **{"drafter": trained / "mamba2-drafter"} | given)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"method": "snapshots", "drafts": 3, "slots": 2},
        {"method": "joint", "drafter": "lookup"},
        {"method": "activation replay", "drafter": "ngram", "drafts": 2, "rows": 3},
        {"method": "replay_buffer", "cache": 29},
        {"tree": "2,2", "method": "tree"},
        {"tree": "2x2"},
        {"tree": "3", "drafter": "ngram", "drafts": 2},
        {"tree": "2", "drafter": "ngram+bigram", "drafts": 2},
        {"tree": "2,1/1,1/3"},
    ],
    ids=lambda given: " ".join(map(str, given.values())) or "defaults",
)
def test_every_drafter_and_method_by_name_gives_what_plain_decoding_gives(
    given: dict[str, Any], trained: Path, plain: ssmspec_fast.Generation
) -> None:
    loaded = speculating(trained, **given)
    found = loaded.generate(PROMPTS, loaded.settings(20))
    assert [(c.tokens, c.text, c.finish) for c in found.completions] == [
        (c.tokens, c.text, c.finish) for c in plain.completions
    ]


def streamed(trained: Path) -> tuple[ssmspec_fast.Generation, list[ssmspec_fast.Piece]]:
    loaded, pieces = speculating(trained), list[ssmspec_fast.Piece]()
    return loaded.generate(PROMPTS, loaded.settings(20), pieces.append), pieces


def test_the_statistics_are_those_of_the_windows(trained: Path) -> None:
    found, pieces = streamed(trained)
    whole = found.statistics
    assert whole.emitted == sum(len(c.tokens) for c in found.completions)
    assert whole.windows == len(pieces) == sum(whole.histogram)
    assert whole.emitted == sum((accepted + 1) * n for accepted, n in enumerate(whole.histogram))
    assert whole.drafted == 4 * whole.windows
    assert whole.none + whole.some + whole.all == whole.windows
    assert whole.none > 0
    assert whole.all > 0
    assert whole.tau == whole.emitted / whole.windows > 1
    assert whole.seconds > 0


def test_what_streams_is_what_comes_back(trained: Path) -> None:
    found, pieces = streamed(trained)
    for number, completion in enumerate(found.completions):
        mine = [piece for piece in pieces if piece.request == number]
        assert "".join(piece.drafts + piece.own for piece in mine) == completion.text
        assert tuple(token for piece in mine for token in piece.window.tokens) == completion.tokens
        assert all(len(piece.drafts) == piece.window.accepted for piece in mine if 0 not in piece.window.tokens)


def test_a_window_is_whole_when_nothing_drafted_stands_below_what_was_accepted() -> None:
    seen = [
        EmittedWindow(0, (5,), 2, False),
        EmittedWindow(0, (5, 6), 2, False),
        EmittedWindow(0, (5, 6, 7), 2, True),
        EmittedWindow(0, (5,), 0, True),
    ]
    found = count(seen)
    assert (found.none, found.some, found.all, found.drafted) == (1, 1, 1, 6)
    assert found.histogram == (2, 1, 1)
    assert (found.emitted, found.windows) == (7, 4)


def test_a_character_is_shown_when_it_is_whole(trained: Path) -> None:
    stream = Stream(Tokenizer(trained / "mamba2"))
    text = "ä→x"
    shown = [stream.add(byte) for byte in text.encode()]
    assert shown == ["", "ä", "", "", "→", "x"]
    assert stream.add(0xC3) == ""
    assert stream.rest() == "\ufffd"


def test_stop_texts_and_the_end_of_sequence_end_a_completion(trained: Path, plain: ssmspec_fast.Generation) -> None:
    loaded, whole = speculating(trained), plain.completions[0].text or ""
    (found,) = loaded.generate(PROMPTS[:1], loaded.settings(20, stop=["no such text", whole[7:10]])).completions
    assert (found.finish, found.text) == ("stop", whole[: whole.index(whole[7:10]) + 3])
    end = plain.completions[0].tokens[5]
    (ended,) = loaded.generate(PROMPTS[:1], loaded.settings(20, eos=[end])).completions
    first = plain.completions[0].tokens.index(end)
    assert (ended.finish, ended.tokens) == ("eos", plain.completions[0].tokens[: first + 1])
    assert ended.text == whole[:first]
    assert loaded.settings(20).eos == (0,)


def test_a_seed_gives_the_same_samples_and_another_others(trained: Path) -> None:
    def sampled(seed: int, **given: Any) -> list[tuple[int, ...]]:
        loaded = speculating(trained, sampling=ssmspec_fast.Sampling(temperature=1.5), seed=seed, **given)
        return [c.tokens for c in loaded.generate(PROMPTS[:2], loaded.settings(8)).completions]

    assert sampled(1) == sampled(1) != sampled(2)
    assert sampled(1, acceptance="naive") == sampled(1, acceptance="naive", slots=1, drafter=None)
    assert sampled(3, acceptance="rejection") != sampled(3, acceptance="naive")


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"method": "plain"}, Unsupported, "choose another method for drafts"),
        ({"method": "snapshots", "tree": "2,1"}, Unsupported, "the drafter proposes trees, but snapshots verifies chains"),
        ({"method": "tree"}, Unsupported, "the drafter proposes chains; use activation-replay"),
        ({"method": "replay-buffer", "drafter": "ngram", "rows": 2}, Unsupported, "2 rows for each sequence"),
        ({"acceptance": "rejection", "tree": "2,1", "sampling": True}, Unsupported, "rejection accepts chains only"),
        ({"acceptance": "greedy", "sampling": True}, ParameterError, "greedy acceptance does not sample"),
        ({"method": "magic"}, ParameterError, "method 'magic' does not exist; give one of plain, snapshots, joint"),
        ({"acceptance": "magic"}, ParameterError, "acceptance rule 'magic' does not exist"),
        ({"mode": "exact"}, ParameterError, "give one of bitwise, fast"),
        ({"dtype": "int8"}, ParameterError, "type 'int8' does not exist"),
        ({"tree": "deep"}, ParameterError, "tree is 'deep'"),
        ({"slots": 0}, ParameterError, "slots is 0"),
        ({"drafts": 0}, ParameterError, "drafts is 0"),
        ({"rows": 2}, Unsupported, "a model drafts one chain or tree"),
        ({"memory": 1000}, MemoryRefused, "1.0 kB are available"),
        ({"drafter": "no/such/folder"}, BrokenFile, "config.json is missing"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_before_a_tensor_is_read(
    given: dict[str, Any], error: type[SpecError], said: str, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssmspec_fast.models.checkpoint.Files.read", lambda *_: pytest.fail("a tensor was read"))
    if given.get("sampling") is True:
        given = given | {"sampling": ssmspec_fast.Sampling(temperature=0.7)}
    with pytest.raises(error, match=said):
        speculating(trained, **given)


@pytest.mark.parametrize(("device", "said"), [("gpu", "'gpu'; give cpu, cuda"), ("cuda:7", "torch sees 2 GPUs"), ("", "'';")])
def test_a_device_that_does_not_exist_is_refused_by_name(device: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(Unsupported, match=said):
        check_device(device)
    check_device("cuda:1")


def test_a_gpu_that_is_not_there_is_refused(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unsupported, match="torch sees no GPU"):
        speculating(trained, device="cuda")


def test_prompts_that_cannot_be_completed_are_refused(trained: Path) -> None:
    loaded = ssmspec_fast.load(trained / "mamba2", cache=30)
    for prompts, error, said in (
        ([""], EmptyWindow, "is empty"),
        ([[256]], ParameterError, "token 256"),
        (["x" * 20], LengthError, "cache=40"),
        ("one text", ParameterError, "give a list"),
    ):
        with pytest.raises(error, match=said):
            loaded.generate(prompts, loaded.settings(20))


@pytest.fixture
def other(trained: Path, tmp_path: Path) -> Path:
    """The drafter's weights without a tokenizer."""
    folder = tmp_path / "other"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((trained / "mamba2-drafter" / name).read_bytes())
    return folder


def test_a_drafter_of_another_tokenizer_drafts_through_its_text(
    trained: Path, other: Path, plain: ssmspec_fast.Generation
) -> None:
    swapped = json.loads((trained / "mamba2" / "tokenizer.json").read_text())
    vocabulary = swapped["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (other / "tokenizer.json").write_text(json.dumps(swapped))
    loaded = speculating(trained, drafter=other, drafts=2)
    assert type(loaded.engine.last.inner).__name__ == "TextDrafter"
    found = loaded.generate(PROMPTS, loaded.settings(20))
    assert [c.tokens for c in found.completions] == [c.tokens for c in plain.completions]
    assert found.statistics.drafted > 0
    with pytest.raises(Unsupported, match="another tokenizer than the target"):
        speculating(trained, drafter=other, tree="2,1")


def test_a_tokenizer_of_another_model_is_refused(trained: Path, other: Path) -> None:
    tokens.save(tokens.merged(["def f(x):\n" * 9], merges=4), other)
    with pytest.raises(TokenizerMismatch, match="has token 259, but the model's vocabulary is 0 to 255"):
        speculating(trained, drafter=other)


def test_the_stated_memory_is_that_of_all_weights_states_and_caches(trained: Path) -> None:
    parts = Parts(trained / "mamba2", trained / "mamba2-drafter", slots=3, cache=100)
    engine = parts.load().engine
    held = engine.target.pools.bytes + engine.last.inner.decoder.pools.bytes
    assert parts.memory.states == held
    stored = sum((trained / name / "model.safetensors").stat().st_size for name in ("mamba2", "mamba2-drafter"))
    assert stored / 2 < parts.memory.weights < 3 * stored
    assert parts.memory.peak >= parts.memory.weights + held


# The command


def test_the_command_prints_the_completion_the_memory_and_the_statistics(
    trained: Path, plain: ssmspec_fast.Generation
) -> None:
    made = call(
        "--checkpoint", trained / "mamba2", "--drafter", trained / "mamba2-drafter", "--prompt", "x", "--max-tokens", 20
    )
    assert made.exit_code == 0, made.output
    assert made.stdout == "x" + (plain.completions[2].text or "") + "\n"
    lines = made.stderr.splitlines()
    assert lines[0].startswith("peak memory ")
    assert "20 tokens in" in lines[1]
    assert "tokens per step" in lines[1]
    assert re.fullmatch(r"drafts: \d+ of \d+ accepted; windows that accepted none: \d+, some: \d+, all: \d+", lines[2])
    assert len(lines) == 3


def test_json_and_the_file_hold_the_same(trained: Path, plain: ssmspec_fast.Generation, tmp_path: Path) -> None:
    file, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    file.write_text("\n".join([json.dumps({"prompt": PROMPTS[0], "path": "a.py"}), *PROMPTS[1:], ""]))
    made = call("--checkpoint", trained / "mamba2", "--prompts", file, "--max-tokens", 20, "--json", "--out", out)
    assert made.exit_code == 0, made.output
    assert made.stdout == out.read_text()
    found = json.loads(made.stdout)
    assert [c["prompt"] for c in found["completions"]] == PROMPTS
    assert [tuple(c["tokens"]) for c in found["completions"]] == [c.tokens for c in plain.completions]
    assert found["statistics"]["tau"] == 1.0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.json", "prompts.jsonl"]


@pytest.mark.parametrize("more", [[], ["--drafter", "lookup", "--acceptance", "naive"]], ids=["plain", "speculative"])
def test_penalties_are_heeded_also_by_greedy_choices(more: list[str], trained: Path) -> None:
    """A penalty on every token that was emitted lets none come twice, whatever is drafted."""
    words = ("--checkpoint", trained / "mamba2", "--prompt", "x", "--max-tokens", 20, "--json", *more)
    (free,) = json.loads(call(*words).stdout)["completions"]
    made = call(*words, "--presence", 1000)
    assert made.exit_code == 0, made.output
    (penalised,) = json.loads(made.stdout)["completions"]
    assert len(set(free["tokens"])) < len(free["tokens"]) == 20
    assert len(set(penalised["tokens"])) == len(penalised["tokens"]) > 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "ParameterError: no checkpoint was given"),
        (["--checkpoint", "mamba2"], "ParameterError: a prompt is missing"),
        (
            ["--checkpoint", "no/such", "--prompt", "x"],
            "ParameterError: no/such does not exist",
        ),
        (["--checkpoint", "{pair}", "--prompt", "x"], "BrokenFile: {pair}/tokenizer.json is missing"),
        (["--prompt", "x", "--temperature", "-1"], "ParameterError: temperature is -1.0"),
        (["--prompt", "x", "--temperature", "nan"], "ParameterError: temperature is nan"),
        (["--prompt", "x", "--repetition", "0"], "ParameterError: repetition is 0.0"),
        (["--prompt", "x", "--min-tokens", "-1"], "ParameterError: min_tokens is -1"),
        (["--prompts", "no/such"], "OptionError: --prompts no/such does not exist"),
        (
            ["--checkpoint", "mamba2", "--prompt", "x", "--out", "no/such/file"],
            "OptionError: --out no/such/file cannot be written",
        ),
        (
            ["--checkpoint", "{pair}/mamba2", "--prompt", "x", "--method", "magic"],
            "ParameterError: method 'magic' does not exist",
        ),
        (["--checkpoint", "{pair}/mamba2", "--prompt", "x", "--memory", "0.0001"], "MemoryRefused: peak memory"),
    ],
)
def test_a_mistake_is_one_line_with_its_name_and_ends_with_two(words: list[str], said: str, trained: Path) -> None:
    made = call(*(word.format(pair=trained) for word in words))
    assert made.exit_code == REFUSED
    last = made.stderr.splitlines()[-1]
    assert last.startswith(said.format(pair=trained))
    assert "Traceback" not in made.output
    assert made.stdout == ""


def test_json_lines_without_a_prompt_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    for line in ('{"text": "x"}', '{"prompt": 3}', '{"prompt": [1, true]}', "{broken"):
        file.write_text("fine\n" + line + "\n")
        made = call("--prompts", file)
        assert made.exit_code == REFUSED
        assert "line 2: JSON without a `prompt` that is text or a list of token ids" in made.stderr


def test_a_file_of_prompts_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)
    made = call("--prompts", file)
    assert made.exit_code == REFUSED
    assert made.stderr.splitlines()[-1].endswith("has more than 268,435,456 bytes; give fewer prompts at once")


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, trained: Path) -> None:
    monkeypatch.setitem(sys.modules, "ssmspec_fast.generator", None)
    made = call("--checkpoint", trained / "mamba2", "--prompt", "x")
    assert made.exit_code == REFUSED
    assert "pip install '../ssmspec[transformers]'" in made.stderr


def interrupted(*_: Any) -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize("where", ["ssmspec_fast.engine.loop.Engine.step", "pathlib.Path.replace"])
def test_ctrl_c_leaves_no_half_written_file(
    where: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    out.write_text("what it held")
    monkeypatch.setattr(where, interrupted)
    made = call("--checkpoint", trained / "mamba2", "--prompt", "x", "--out", out, "--json")
    assert made.exit_code == cli.INTERRUPTED
    assert f"interrupted; {out} was not written" in made.stderr
    assert out.read_text() == "what it held"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.usefixtures("heeds_interrupts")
def test_planted_writing_in_place_is_caught(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would see of a command that opens its file first."""

    def in_place(file: Path, text: str) -> None:
        file.write_text(text[: len(text) // 2])
        interrupted()

    out = tmp_path / "out.json"
    monkeypatch.setattr(cli, "write_whole", in_place)
    call("--checkpoint", trained / "mamba2", "--prompt", "x", "--max-tokens", 2, "--out", out)
    with pytest.raises(ValueError, match=r"."):
        json.loads(out.read_text())


def test_the_one_command_finds_it_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["ssmspec.commands"]["generate"] == "ssmspec_fast.cli.generate:app"

    class Entry:
        name = "generate"
        load: Callable[[], Any] = staticmethod(lambda: cli.app)

    monkeypatch.setattr(main, "entry_points", lambda group: [Entry()])
    made = CliRunner().invoke(main.build(), ["generate", "--help"], env={"COLUMNS": "200"})
    assert made.exit_code == 0
    assert "--demo" in made.output


def test_the_command_is_there_without_torch() -> None:
    """`ssmspec --help` loads every subcommand; a machine for the reference alone has no torch."""
    probe = (
        "import sys; sys.modules['torch'] = None; import ssmspec_fast.cli.generate, ssmspec_fast; print(ssmspec_fast.__all__)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_the_engine_is_told_nothing_that_changes_its_tokens(trained: Path, plain: ssmspec_fast.Generation) -> None:
    model = ssmspec_fast.load(trained / "mamba2").engine
    bare = engine(model.model, operations=model.operations)
    found = emitted(bare, [list(text.encode()) for text in PROMPTS], ssmspec_fast.Settings(20, eos=(0,)))
    assert found == [c.tokens for c in plain.completions]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--method", "snapshots"], "verifies drafts, but no drafter was given"),
        (["--method", "tree"], "verifies drafts, but no drafter was given"),
        (["--tree", "3,2,1"], "tree=3,2,1 has no use: no drafter was given"),
        (["--drafter", "lookup", "--tree", "a"], "tree=a has no use: the drafter lookup has a fixed shape"),
        (["--drafter", "ngram", "--method", "tree"], "the method tree verifies trees"),
        (["--drafter", "ngram", "--method", "plain"], "plain decoding takes windows of 1 token"),
    ],
)
def test_a_method_that_cannot_be_used_is_refused_before_the_prompt_is_printed(given: list[str], said: str) -> None:
    done = call("--checkpoint", SHIPPED / "mamba2", "--prompt", "def", *given)
    assert (done.exit_code, done.stdout) == (REFUSED, "")
    assert said in done.stderr


def test_small_models_compute_on_one_thread_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads wait for each other longer than they compute."""
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    cli._one_thread(1000)
    assert not chosen, "the user's choice is kept"
    monkeypatch.delenv("OMP_NUM_THREADS")
    cli._one_thread(cli.SMALL)
    assert not chosen, "a large model uses them all"
    cli._one_thread(cli.SMALL - 1)
    assert chosen == [1]
