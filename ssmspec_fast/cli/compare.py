"""`ssmspec generate --compare`: is speculation with this checkpoint lossless? Also decodes every prompt plainly.

Greedy decoding only: a sampled run has the distribution of plain decoding, not its tokens. In bitwise mode any difference is
a fault. In fast mode a token may differ where two logits are tied up to rounding (`ssmspec_ref.near_ties`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ssmspec_ref.near_ties import NearTie, first_difference, near_tie

from ..engine import traces
from ..generator import Generation, Prompt
from ..models.build import Parts

PLAIN = ("mode", "device", "dtype", "limit", "sampling", "seed", "slots", "accept")
"""Arguments that plain decoding shares with the speculative run."""
LISTED = 8
ADVICE = {"accepted": "the checkpoint itself as --drafter, which agrees with it", "rejected": "another --drafter"}
"""What to try if no draft was accepted, or none rejected."""


def compared(
    progress: Console,
    checkpoint: Path,
    texts: list[Prompt],
    max_tokens: int,
    stop: list[str],
    given: dict[str, Any],
    room: dict[str, Any],
    done: Generation,
) -> tuple[bool, dict[str, Any]]:
    """Decodes plainly and prints the verdict; returns whether every prompt is identical, or differs at a near tie, and what
    was found as plain data."""
    plain = Parts(checkpoint, None, None, **{name: given[name] for name in PLAIN}, **room).load()
    slow = plain.generate(texts, plain.settings(max_tokens, stop))
    pairs = list(zip(done.completions, slow.completions, strict=True))
    places = {n: at for n, pair in enumerate(pairs) if (at := first_difference(*(one.tokens for one in pair))) is not None}
    judged = given["sampling"] is None and given["mode"] == "fast"
    ties = {
        n: tie(checkpoint, texts[n], pairs[n][0].tokens, pairs[n][1].tokens, at, given) if judged else None
        for n, at in places.items()
    }
    near = sum(found is not None and found.excused for found in ties.values())
    differ = len(places) - near
    same = len(texts) - len(places)
    said = f"identical to plain decoding: {same} of {len(texts)} prompts"
    said += f", {near} near ties of rounding" if near else ""
    said += f", {differ} DIFFER" if differ else ""
    how = f" (method {given['method']}, mode {given['mode']})"
    progress.print(said + how, style="red" if differ else None, markup=False)
    for n, at in list(places.items())[:LISTED]:
        got, expected = (_token(one.tokens, at) for one in pairs[n])
        progress.print(f"  {_line(n, at, got, expected, ties[n], judged)}", markup=False)
    _coverage(progress, done)
    found: dict[str, Any] = {"method": given["method"], "mode": given["mode"], "prompts": len(texts), "identical": same}
    found |= {"near_ties": near, "differ": differ, "differences": []}
    for n, at in places.items():
        ours, theirs = (one.tokens[at] if at < len(one.tokens) else None for one in pairs[n])
        tied = ties[n]
        found["differences"].append(
            {"prompt": n, "token": at, "expected": theirs, "got": ours, "near_tie": tied is not None and tied.excused}
        )
    return differ == 0, found


def tie(
    checkpoint: Path, text: Prompt, got: Sequence[int], expected: Sequence[int], at: int, given: dict[str, Any]
) -> NearTie | None:
    """The near-tie analysis of one prompt, whose logits are those of two runs alone: in a batch sums may have another order,
    and a run alone may take another of two tied tokens. None where a sequence ended, or a run alone differs before it."""
    if at >= min(len(got), len(expected)):
        return None
    options = {name: value for name, value in given.items() if name not in ("slots", "sampling", "seed")}
    shared = {name: value for name, value in options.items() if name in PLAIN}
    runs = [traces.run(checkpoint, [text], at + 1, **some) for some in (options, shared)]
    if any(tuple(run.tokens[0][:at]) != tuple(expected[:at]) or len(run.tokens[0]) <= at for run in runs):
        return None
    exact = traces.Exact(checkpoint, given["device"], given["accept"])(text, list(expected[: at + 1]))
    ours, theirs = (run.logits[0][: at + 1] for run in runs)
    return near_tie(ours, theirs, exact[: at + 1], (got[at], expected[at]))


def _line(number: int, at: int, got: str, expected: str, found: NearTie | None, judged: bool) -> str:
    said = f"prompt {number + 1}, token {at + 1} (both from 1): expected {expected}, got {got}"
    if not judged:
        return said
    if found is None:
        return (
            f"{said}; no logits to compare: a sequence ended, or one run alone takes other tokens before it (try --slots 1)"
        )
    how = "near tie" if found.excused else "no near tie"
    return f"{said}; {how}: float64 logits {found.margin:.2g} apart, rounding {sum(found.errors):.2g}"


def _token(tokens: tuple[int, ...], at: int) -> str:
    return str(tokens[at]) if at < len(tokens) else "the end"


def _coverage(progress: Console, done: Generation) -> None:
    """Prints a warning if what the prompts exercised of speculation says little about losslessness."""
    fast = done.statistics
    counts = {"accepted": fast.some + fast.all, "rejected": fast.none + fast.some}
    for word in (word for word, count in counts.items() if not count):
        progress.print(
            f"warning: no draft was {word}, so this says little about losslessness; try {ADVICE[word]}, or more tokens",
            style="yellow", markup=False,
        )  # fmt: skip
