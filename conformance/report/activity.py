"""What speculation did in a run of whole engines: an engine that accepts no draft is lossless, and shows nothing.

`generate` may return how many drafts it proposed and accepted (`suite.generate`). If none was accepted over all cases of a
subject, or none rejected, its speculation was not exercised, and the verdict is unknown, not passed.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from .stream import Result

IDLE = "not exercised"
"""The kind of failure of an engine whose drafts were all rejected, or all accepted."""
ENGINES = "generate."
"""The operations of whole engines begin so."""
COUNT = "return tokens, proposed, accepted"


def not_exercised(results: Iterable[Result]) -> list[Result]:
    """An unknown result for each subject that counts its drafts, and whose speculation was not exercised."""
    return [
        Result(
            adapter=adapter, subject=subject, contract=contract, operation=operation, case="", verdict="unknown",
            failing=IDLE, message=f"{operation}: {why}",
        )
        for (adapter, subject, contract, operation), own in _counting(results)
        if (why := _idle(*_sums(own)))
    ]  # fmt: skip


def told(results: Iterable[Result]) -> list[str]:
    """A line for each engine: how many of its drafts were accepted, or that it does not say."""
    lines = []
    for (adapter, subject, _, operation), own in _counting(results, silent=True):
        if any(r.drafts is not None for r in own):
            proposed, accepted = _sums(own)
            lines.append(f"{adapter}: {subject}: {accepted} of {proposed} drafts were accepted")
        elif any(r.verdict == "pass" for r in own):
            lines.append(
                f"{adapter}: {subject} does not say how many drafts were accepted, and an engine that rejects all would pass "
                f"{operation} too; {COUNT}"
            )
    return lines


def _counting(results: Iterable[Result], silent: bool = False) -> Iterator[tuple[tuple[str, ...], Sequence[Result]]]:
    """The cases of each engine by adapter, subject, contract and operation; `silent` includes those without counts."""
    found: dict[tuple[str, ...], list[Result]] = defaultdict(list)
    for r in results:
        if r.case and r.operation.startswith(ENGINES):
            found[r.adapter, r.subject, r.contract, r.operation].append(r)
    return ((cell, own) for cell, own in found.items() if silent or any(r.drafts is not None for r in own))


def _sums(results: Iterable[Result]) -> tuple[int, int]:
    """The drafts proposed and accepted."""
    counts = [r.drafts for r in results if r.drafts is not None]
    return sum(proposed for proposed, _ in counts), sum(accepted for _, accepted in counts)


def _idle(proposed: int, accepted: int) -> str:
    """What was not exercised, and what to do; "" if drafts were accepted and rejected."""
    if not accepted:
        what = f"none of {proposed} proposed drafts was accepted" if proposed else "no draft was proposed"
        return (
            f"{what}, so this shows nothing about speculation; give the engine a drafter that agrees with its model at times"
        )
    if accepted == proposed:
        return (
            f"all {proposed} proposed drafts were accepted, so no rejection was exercised; give the engine a drafter that "
            "differs from its model at times"
        )
    return ""
