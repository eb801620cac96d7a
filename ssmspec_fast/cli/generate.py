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

from ssmspec_ref.errors import OptionError, ParameterError, SpecError
from ssmspec_ref.options import files
from ssmspec_ref.options.memory import in_bytes
from ssmspec_ref.options.typed import Typed

from .options import (
    AcceptOption,
    CheckpointOption,
    ChooseOption,
    DeviceOption,
    DrafterOption,
    DraftsOption,
    DtypeOption,
    MemoryOption,
    RowsOption,
    TreeOption,
)
from .prompts import check_prompts, prompts_of, shown
from .refusal import refused
from .shipped import shipped

if TYPE_CHECKING:
    from ..engine.emitted_windows import Counts
    from ..engine.sampling import Sampling
    from ..generator import Generation, Prompt

app = typer.Typer(pretty_exceptions_enable=False, help="Complete prompts with a checkpoint, speculatively.")
DIFFERS, FAILED, INTERRUPTED = 1, 1, 130
"""Exit codes: the demo or --compare found a difference; a completion failed; Ctrl-C."""
WITHOUT_A_MODEL = ("ngram", "ngram+bigram", "lookup")
"""Drafters that are no checkpoint."""
NOT_OF_THE_DEMO = (
    "--acceptance", "--stop", "--temperature", "--top-k", "--top-p", "--repetition", "--presence", "--frequency",
    "--min-tokens", "--seed", "--slots", "--json", "--out", "--compare", "--accept-field", "--choose",
)  # fmt: skip
SMALL = 64 * 10**6
"""Bytes of weights below which one thread is used."""


@app.callback(invoke_without_command=True)
def generate(
    context: typer.Context,
    checkpoint: CheckpointOption = None,
    drafter: DrafterOption = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="How drafts are verified and rejected ones undone: plain, snapshots, joint, joint-by-lag, "
            "activation-replay, replay-buffer or tree. Default: activation-replay; with --tree: tree; without a drafter: "
            "plain; with --demo: snapshots."
        ),
    ] = None,
    acceptance: Annotated[str | None, typer.Option(help="Acceptance rule: greedy, rejection, multi-step or naive.")] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="bitwise: the bits of plain decoding; fast: may round differently. Default: bitwise; with --demo: fast."
        ),
    ] = None,
    drafts: DraftsOption = 4,
    choose: ChooseOption = False,
    rows: RowsOption = 1,
    tree: TreeOption = None,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt. Repeat the option for several.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="File with one prompt a line, or JSON lines with `prompt`: a text, or a list of token ids."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=0, help="Maximum tokens per completion.")] = 128,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends a completion. Repeat the option for several.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample from the most likely tokens with this total probability.")] = 1.0,
    repetition: Annotated[float, typer.Option(help="Repetition penalty; 1: none.")] = 1.0,
    presence: Annotated[float, typer.Option(help="Presence penalty.")] = 0.0,
    frequency: Annotated[float, typer.Option(help="Frequency penalty.")] = 0.0,
    min_tokens: Annotated[int, typer.Option(help="Minimum tokens before an end of sequence.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    slots: Annotated[int, typer.Option(min=1, help="Prompts decoded at once.")] = 8,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = None,
    accept_field: AcceptOption = None,
    memory: MemoryOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print completions and statistics as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the JSON to this file, completely or not at all.")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Decode plainly too and compare token by token; exit code 1 if they differ.")
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Complete a Python function with the models that ship with ssmspec.")
    ] = False,
) -> None:
    """Complete prompts. Texts go to standard output, everything else to standard error."""
    console, progress = _console(False), _console(True)
    given: dict[str, Any] = {"method": method, "mode": mode, "drafts": drafts, "choose": choose, "rows": rows, "tree": tree}
    given |= {"device": device, "dtype": dtype, "accept": accept_field or []}
    defaults = {"mode": "fast", "dtype": "float32", "method": "snapshots"} if demo else {"mode": "bitwise"}
    if tree is not None:
        defaults.pop("method", None)
    given |= {name: value for name, value in defaults.items() if given[name] is None}
    with _one_line(progress, out):
        _check_use(Typed(context), demo, drafter, tree, temperature)
        given["limit"] = in_bytes(memory)
        if prompts is not None:
            files.readable("--prompts", prompts)
        texts = prompts_of(prompt or [], prompts)
        checkpoint, drafter = shipped(checkpoint), str(shipped(Path(drafter), WITHOUT_A_MODEL)) if drafter else None
        if demo and len(texts) > 1:
            raise OptionError(f"--demo completes one prompt, but {len(texts)} were given; give one, or omit --demo")
        if demo:
            same = _demo(console, progress, checkpoint, drafter, texts, max_tokens, given)
            raise typer.Exit(0 if same else DIFFERS)
        if min_tokens > max_tokens:
            raise OptionError(
                f"--min-tokens is {min_tokens}, more than --max-tokens, {max_tokens}; give fewer, or more to it"
            )
        if "" in (stop or []):
            raise OptionError("--stop is empty, and every completion would end at once; give a text")
        sampling = _sampling(
            temperature=temperature, top_k=top_k, top_p=top_p,
            repetition=repetition, presence=presence, frequency=frequency, min_tokens=min_tokens,
        )  # fmt: skip
        _check(checkpoint, texts, out)
        given |= {"drafter": drafter, "acceptance": acceptance, "sampling": sampling, "seed": seed, "slots": slots}
        if compare and drafter is None:
            raise ParameterError("--compare was given without a --drafter, so there is no speculation to compare; give one")
        if compare and (temperature or acceptance not in (None, "greedy")):
            raise ParameterError(
                "--compare compares greedy tokens, but sampling is on: sampled speculation has the distribution of plain "
                "decoding, not its tokens; omit --temperature and --acceptance"
            )
        done, room = _generate(console, progress, checkpoint, texts, max_tokens, stop or [], given, show=not as_json)
        whole: dict[str, Any] = _as_json(texts, done)
        if not compare:
            _write(whole, as_json, out)
        report(progress, done.statistics, tree is not None)
        if compare and not _failed(done):
            from .compare import compared

            same, whole["comparison"] = compared(
                progress, Path(str(checkpoint)), texts, max_tokens, stop or [], given, room, done
            )
            _write(whole, as_json, out)
            raise typer.Exit(0 if same else DIFFERS)
        if compare:
            _write(whole, as_json, out)
        _complain(progress, done)


def _check_use(typed: Typed, demo: bool, drafter: str | None, tree: str | None, temperature: float) -> None:
    """Raises: OptionError for options that would be ignored."""
    if demo:
        typed.unused(
            NOT_OF_THE_DEMO, "--demo completes one prompt greedily and compares it with plain decoding", "omit --demo"
        )
        return
    if drafter is None:
        typed.unused(["--drafts", "--choose", "--rows"], "no drafter was given", "give --drafter")
    if drafter is None and temperature == 0:
        typed.unused(["--acceptance"], "no drafter was given, and nothing is sampled", "give --drafter")
    if tree is not None:
        typed.unused(["--rows", *([] if drafter in WITHOUT_A_MODEL else ["--drafts"])], "--tree says what is drafted")
    if temperature == 0:
        typed.unused(["--top-k", "--top-p", "--seed"], "at temperature 0 nothing is sampled", "give --temperature")


def _console(stderr: bool) -> Console:
    return Console(stderr=stderr, highlight=False, soft_wrap=True)


@contextmanager
def _one_line(progress: Console, out: Path | None) -> Iterator[None]:
    """Turns expected errors into one line on standard error."""
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
    texts: list["Prompt"],
    max_tokens: int,
    stop: list[str],
    given: dict[str, Any],
    show: bool,
) -> tuple["Generation", dict[str, Any]]:
    """Loads, prints the memory it takes, completes; returns the completions, and the tokens that there was room for."""
    from ..generator import Piece
    from ..models.build import Parts
    from ..models.tokenizer import encoded
    from . import choices

    assert checkpoint is not None
    longest = max(len(tokens) for tokens in encoded(checkpoint, texts, text_too=bool(stop)))
    given["slots"] = min(given["slots"], len(texts))
    room: dict[str, Any] = {"cache": longest + max(0, max_tokens), "prompt": longest}
    parts = Parts(checkpoint, **room, **given)
    progress.print(str(parts.memory), markup=False)
    _one_thread(parts.memory.weights)
    engine = parts.load()
    given["method"] = choices.method_name(given["method"], engine.engine.drafter)

    def write(piece: Piece) -> None:
        console.print(piece.drafts, style="green", end="", markup=False)
        console.print(piece.own, end="", markup=False)

    settings, alone = engine.settings(max_tokens, stop), show and len(texts) == 1 and engine.tokenizer is not None
    if alone:
        console.print(shown(texts[0]), style="dim", end="", markup=False)
    done = engine.generate(texts, settings, write if alone else None)
    if alone:
        console.print()
    elif show:
        for text, completion in zip(texts, done.completions, strict=True):
            console.print(shown(text), style="dim", end="", markup=False)
            console.print(f" {shown(completion.tokens)}" if completion.text is None else completion.text, markup=False)
    return done, room


def report(progress: Console, found: "Counts", trees: bool = False) -> None:
    """Prints the statistics, on two lines. Of a tree at most one branch is accepted, never all drafts."""
    progress.print(
        f"{found.emitted} tokens in {found.windows} calls of the target: {found.tau:.2f} tokens per step; "
        f"{found.seconds:.2f} s, {found.per_second:.1f} tokens/s"
    )
    if found.drafted:
        accepted = sum(count * n for n, count in enumerate(found.histogram))
        progress.print(
            f"drafts: {accepted} of {found.drafted} accepted; windows that accepted none: {found.none}, some: {found.some}, "
            f"{'a whole branch' if trees else 'all'}: {found.all}"
        )


def _failed(done: "Generation") -> list[int]:
    return [number for number, one in enumerate(done.completions) if one.finish == "failed"]


def _write(whole: dict[str, Any], as_json: bool, out: Path | None) -> None:
    text = json.dumps(whole, ensure_ascii=False) + "\n"
    if as_json:
        typer.echo(text, nl=False)
    if out is not None:
        write_whole(out, text)


def _complain(progress: Console, done: "Generation") -> None:
    """Exits with FAILED if a completion failed, and says which and why."""
    if failed := _failed(done):
        which = ", ".join(str(1 + number) for number in failed[:8]) + (", .." if len(failed) > 8 else "")
        progress.print(
            f"failed: {len(failed)} of {len(done.completions)} completions (prompt {which}): the model's logits are not "
            "numbers; look for NaN among the weights, and for a config that does not fit them",
            style="red", markup=False,
        )  # fmt: skip
        raise typer.Exit(FAILED)


def _as_json(texts: list["Prompt"], done: "Generation") -> dict[str, Any]:
    completions = [
        {"prompt": text, "text": c.text, "tokens": c.tokens, "finish": c.finish, "tau": c.statistics.tau}
        for text, c in zip(texts, done.completions, strict=True)
    ]
    statistics = asdict(done.statistics) | {"tau": done.statistics.tau, "tokens_per_second": done.statistics.per_second}
    return {"completions": completions, "statistics": statistics}


def write_whole(file: Path, text: str) -> None:
    """Writes the whole text, or leaves the file unchanged."""
    part = file.with_name(f".{file.name[:200]}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    except OSError as error:
        raise ParameterError(f"{file} cannot be written: {error.strerror}; what it held is unchanged") from error
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def _sampling(**given: Any) -> "Sampling | None":
    """None for greedy without penalties. Raises: ParameterError."""
    from ..engine.sampling import Sampling

    found = Sampling(**given)
    return None if found.temperature == 0 and not found.remembers else found


def _one_thread(weights: int) -> None:
    """Compute small models on one thread: on several, waiting for each other takes longer than the work itself."""
    import torch

    if weights < SMALL and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def _check(checkpoint: Path | None, texts: list["Prompt"], out: Path | None) -> None:
    """Raises: ParameterError."""
    if checkpoint is None:
        raise ParameterError("no checkpoint was given; give --checkpoint FOLDER, or --demo for the models that ship")
    check_prompts(texts)
    files.writable("--out", out)


def _demo(
    console: Console,
    progress: Console,
    checkpoint: Path | None,
    drafter: str | None,
    texts: list["Prompt"],
    max_tokens: int,
    given: dict[str, Any],
) -> bool:
    from .demo import PROMPT, run

    prompt = texts[0] if texts else PROMPT
    if not isinstance(prompt, str):
        raise OptionError("--demo completes text, but the prompt is a list of token ids; give text, or omit --demo")
    return run(console, progress, checkpoint, drafter, prompt, max_tokens, given)
