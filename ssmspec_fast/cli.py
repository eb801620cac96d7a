"""`ssmspec generate`: complete prompts with a checkpoint, speculatively; `--demo` shows it on the pair that ships."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ssmspec_ref.errors import ParameterError, SpecError

from .refusal import refused

if TYPE_CHECKING:
    from .accept.processors import Sampling
    from .api import Generation
    from .watch import Counts

app = typer.Typer(pretty_exceptions_enable=False, help="Complete prompts with a checkpoint, speculatively.")
DIFFERS, INTERRUPTED = 1, 130
"""Exit codes: the demo found a difference; Ctrl-C."""


@app.callback(invoke_without_command=True)
def generate(
    checkpoint: Annotated[Path | None, typer.Option(help="A folder in Hugging Face format: config and safetensors.")] = None,
    drafter: Annotated[str | None, typer.Option(help="A checkpoint's folder, ngram or lookup; none: plain decoding.")] = None,
    method: Annotated[str | None, typer.Option(help="How drafts are verified and undone: docs/generate.md.")] = None,
    acceptance: Annotated[str | None, typer.Option(help="greedy, rejection, multi-step or naive.")] = None,
    mode: Annotated[str | None, typer.Option(help="bitwise, or fast, which may round otherwise; fast for the demo.")] = None,
    drafts: Annotated[int, typer.Option(help="Draft tokens in a window.")] = 4,
    rows: Annotated[int, typer.Option(help="Chains for each prompt, with ngram.")] = 1,
    tree: Annotated[str | None, typer.Option(help="Draft a tree: a, children by level as 3,2,1, beams as 2x4.")] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt; may be given again.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="A file: a prompt in each line, or JSON lines with `prompt`.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens that each prompt may get.")] = 128,
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends a completion; may be given again.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k most probable; 0: from all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample from the most probable that hold this mass.")] = 1.0,
    repetition: Annotated[float, typer.Option(help="Divides the logits of what was written; 1: as they are.")] = 1.0,
    presence: Annotated[float, typer.Option(help="Taken from the logits of what was emitted.")] = 0.0,
    frequency: Annotated[float, typer.Option(help="Taken from them as often as it was emitted.")] = 0.0,
    min_tokens: Annotated[int, typer.Option(help="No end of sequence before so many tokens.")] = 0,
    seed: Annotated[int, typer.Option(help="Names the noise, with prompt and position.")] = 0,
    slots: Annotated[int, typer.Option(help="Prompts at once.")] = 8,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ..")] = "cpu",
    dtype: Annotated[str | None, typer.Option(help="Of the weights: float32, bfloat16, ..; none: as stored.")] = None,
    memory: Annotated[int | None, typer.Option(help="Bytes that may be taken; without it, what is free.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print completions and statistics as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write that JSON to a file, whole or not at all.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Complete a Python function with the models that ship.")] = False,
) -> None:
    """Complete prompts. Texts go to standard output, everything else to standard error."""
    console, progress = _console(False), _console(True)
    given: dict[str, Any] = {"method": method, "mode": mode, "drafts": drafts, "rows": rows, "tree": tree}
    given |= {"device": device, "dtype": dtype, "limit": memory}
    defaults = {"mode": "fast", "dtype": "float32", "method": "snapshots"} if demo else {"mode": "bitwise"}
    if tree is not None:
        defaults.pop("method", None)
    given |= {name: value for name, value in defaults.items() if given[name] is None}
    with _one_line(progress, out):
        texts = _prompts(prompt or [], prompts)
        if demo:
            same = _demo(console, progress, checkpoint, drafter, texts, max_tokens, given)
            raise typer.Exit(0 if same else DIFFERS)
        sampling = _sampling(
            temperature=temperature, top_k=top_k, top_p=top_p,
            repetition=repetition, presence=presence, frequency=frequency, min_tokens=min_tokens,
        )  # fmt: skip
        _check(checkpoint, texts, out)
        given |= {"drafter": drafter, "acceptance": acceptance, "sampling": sampling, "seed": seed, "slots": slots}
        done = _generate(console, progress, checkpoint, texts, max_tokens, stop or [], given, show=not as_json)
        found = json.dumps(_as_json(texts, done), ensure_ascii=False) + "\n"
        if as_json:
            typer.echo(found, nl=False)
        if out is not None:
            write_whole(out, found)
        report(progress, done.statistics)


def _console(stderr: bool) -> Console:
    return Console(stderr=stderr, highlight=False, soft_wrap=True)


@contextmanager
def _one_line(progress: Console, out: Path | None) -> Iterator[None]:
    """What goes wrong by a named error, in a line."""
    try:
        yield
    except (SpecError, ModuleNotFoundError) as error:
        raise refused(error, "transformers") from error
    except KeyboardInterrupt as error:
        progress.print("interrupted" if out is None else f"interrupted; {out} was not written", markup=False)
        raise typer.Exit(INTERRUPTED) from error


def _generate(
    console: Console,
    progress: Console,
    checkpoint: Path | None,
    texts: list[str],
    max_tokens: int,
    stop: list[str],
    given: dict[str, Any],
    show: bool,
) -> "Generation":
    """Load, say what memory it takes, complete."""
    from .api import Piece
    from .parts import Parts
    from .tokenizer import Tokenizer

    assert checkpoint is not None
    longest = max(len(Tokenizer(checkpoint).encode(text)) for text in texts)
    given["slots"] = min(given["slots"], len(texts))
    parts = Parts(checkpoint, cache=longest + max(0, max_tokens), **given)
    progress.print(str(parts.memory), markup=False)
    engine = parts.load()

    def write(piece: Piece) -> None:
        console.print(piece.drafts, style="green", end="", markup=False)
        console.print(piece.own, end="", markup=False)

    settings, alone = engine.settings(max_tokens, stop), show and len(texts) == 1
    if alone:
        console.print(texts[0], style="dim", end="", markup=False)
    done = engine.generate(texts, settings, write if alone else None)
    if alone:
        console.print()
    elif show:
        for text, completion in zip(texts, done.completions, strict=True):
            console.print(text, style="dim", end="", markup=False)
            console.print(completion.text, markup=False)
    return done


def report(progress: Console, found: "Counts") -> None:
    """The statistics, on two lines."""
    progress.print(
        f"{found.emitted} tokens in {found.windows} calls of the target: {found.tau:.2f} tokens a call; "
        f"{found.drafted} drafted; {found.seconds:.2f} s, {found.per_second:.1f} tokens a second"
    )
    if found.drafted:
        accepted = ", ".join(f"{count} x {n}" for n, count in enumerate(found.histogram) if count)
        progress.print(f"drafts accepted in a window: {accepted}")


def _as_json(texts: list[str], done: "Generation") -> dict[str, Any]:
    completions = [
        {"prompt": text, "text": c.text, "tokens": c.tokens, "finish": c.finish, "tau": c.statistics.tau}
        for text, c in zip(texts, done.completions, strict=True)
    ]
    statistics = asdict(done.statistics) | {"tau": done.statistics.tau, "tokens_per_second": done.statistics.per_second}
    return {"completions": completions, "statistics": statistics}


def write_whole(file: Path, text: str) -> None:
    """The file holds all of the text, or what it held before."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def _prompts(given: list[str], file: Path | None) -> list[str]:
    """Raises: ParameterError for a file that is none, or a line of JSON without a prompt."""
    if file is None:
        return given
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{file} cannot be read as prompts: {error}") from error
    return given + [_prompt(line, file, n) for n, line in enumerate(lines, 1) if line]


def _prompt(line: str, file: Path, number: int) -> str:
    if not line.startswith("{"):
        return line
    with suppress(ValueError):
        found = json.loads(line)
        if isinstance(found.get("prompt"), str):
            return found["prompt"]
    raise ParameterError(f'{file}, line {number}: JSON without a text `prompt`; give {{"prompt": ..}} or plain text')


def _sampling(**given: Any) -> "Sampling | None":
    """None for greedy without penalties. Raises: ParameterError."""
    from .accept.processors import Sampling

    found = Sampling(**given)
    return None if found.temperature == 0 and not found.remembers else found


def _check(checkpoint: Path | None, texts: list[str], out: Path | None) -> None:
    """Raises: ParameterError."""
    if checkpoint is None:
        raise ParameterError("no checkpoint was given; give --checkpoint FOLDER, or --demo for the models that ship")
    if not any(texts) or not all(texts):
        raise ParameterError("a prompt is missing or empty; give --prompt TEXT or --prompts FILE")
    if out is not None and not (out.parent.is_dir() and not out.is_dir()):
        raise ParameterError(f"{out} cannot be written: {out.parent} is no folder, or {out} is one")


def _demo(
    console: Console,
    progress: Console,
    checkpoint: Path | None,
    drafter: str | None,
    texts: list[str],
    max_tokens: int,
    given: dict[str, Any],
) -> bool:
    from .demo import PROMPT, run

    return run(console, progress, checkpoint, drafter, texts[0] if texts else PROMPT, max_tokens, given)
