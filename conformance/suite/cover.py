"""The smoke tier: few cases of a table that cover every option value and family once.

It has the first case, and one of the last family (which is called three times) with defaults only; then, repeatedly, the case
that adds the most families and option values not yet covered, the smallest one on ties. At least one has inputs that are
views with gaps.
"""

from collections.abc import Hashable, Sequence

from ..cases import Case

GAPS = "gaps"


def cover(cases: Sequence[Case]) -> list[Case]:
    """The selected cases of a table, in its order."""
    if not cases:
        return []
    plain = [case for case in cases if case.seed == 0 and case.options == cases[0].options]
    last = [case for case in plain if case.sizes == cases[0].sizes][-1]
    chosen = [0, *({cases.index(last)} - {0})]
    wanted = set().union(*map(parts, cases)) - set().union(*(parts(cases[at]) for at in chosen))
    while wanted:
        best = max(range(len(cases)), key=lambda at: (len(parts(cases[at]) & wanted), -cases[at].size()))
        chosen.append(best)
        wanted -= parts(cases[best])
    return [cases[at] for at in sorted(chosen)]


def parts(case: Case) -> set[Hashable]:
    """What a case covers: its family, the value of each of its options, gaps."""
    return {case.family, *case.options.items(), *([GAPS] if case.seed else [])}
