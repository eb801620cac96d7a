"""The sampled distribution with settings of each row's own, min-p among them.

    process_rows(logits, prompt, output, settings, eos) -> p

As `acceptance.process`, with a record of arrays, a number for each row, in place of one setting for all. Neighbours have
different settings, so that what belongs to another row shows. With `combine=one` a row has one setting that changes
something, in turn; with `combine=several` all of them are drawn. Sizes as in `acceptance.process`.
"""

from typing import Any

import numpy as np

from ssmspec_ref.accept.processors import RowSettings
from ssmspec_ref.contract import NumericContract

from ...cases import Case
from ...judge.draw import Draw
from .. import processors
from ..called import Arguments, pure
from ..expected import Expected
from ..specification import Specification
from ..tables import cases_of, sizes_of

DRAWN: dict[str, tuple[float, ...]] = {
    "temperature": (0.7, 3.0, 0.0, 1.5),
    "top_k": (5, 1, 3, 10**6),
    "top_p": (0.8, 0.5, 0.9),
    "min_p": (0.1, 0.5, 0.02, 1.0),
    "repetition": (1.3, 0.8),
    "presence": (0.4, -0.3),
    "frequency": (0.25, 0.2),
    "min_tokens": (2, 10**6),
}
PLAIN: dict[str, float] = {"temperature": 1.0, "top_p": 1.0, "repetition": 1.0}
COUNTS = ("top_k", "min_tokens")


def draw_rows(case: Case, contract: NumericContract) -> Arguments:
    draw = Draw(case, contract)
    plain = dict.fromkeys(("temperature", "top_p", "penalty", "minimum", "top_k"), "off") | {"temperature": "one"}
    base = Case(case.operation, case.sizes, {**plain, "level": "near"}, case.family, case.seed)
    logits, prompt, output, *_, eos = processors.draw_rows(base, contract)
    rows, rng = np.arange(len(logits)), draw.rng("settings")
    names = [name for name in DRAWN if name != "min_p" or draw.options["min_p"] == "some"]
    found = {}
    for at, name in enumerate(names):
        values = rng.choice(DRAWN[name], len(rows))
        asks = rng.random(len(rows)) < 0.5 if draw.options["combine"] == "several" else rows % len(names) == at
        found[name] = np.where(asks, values, PLAIN.get(name, 0.0))
    found.setdefault("min_p", np.zeros(len(rows)))
    given = {name: a.astype(np.int64) if name in COUNTS else a.astype(np.float64) for name, a in found.items()}
    return logits, prompt, output, RowSettings(**given), eos


def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    logits, prompt, output, settings, eos = arguments
    own = [settings.of(b, frozenset(eos)) for b in range(len(logits))]
    return processors.expect_rows(logits, prompt, output, own, contract)


FURTHER = cases_of(
    "b30/min_p=some/normal",
    "b30/min_p=some,combine=several/masked",
    "b9,i2000/min_p=some/normal",
    "b65,i9/combine=several/normal",
)
"""Every setting in several rows; a large vocabulary; many rows."""
SPECIFICATION = Specification(
    operation="acceptance.process_rows",
    base={**processors.BASE, "b": 9},
    rows=sizes_of("b1", "b3,i300", "b17,i5", "l1,t9", "b8"),
    options={"min_p": ("off", "some"), "combine": ("one", "several")},
    families=("normal", "tied", "masked"),
    sources={
        "": "SpecInfer (arXiv:2305.09781), section 4.3; bug class P-MISMATCH",
        "min_p": "arXiv:2407.01082, section 3",
    },
    draw=draw_rows,
    expect=expect,
    run=pure,
    further=FURTHER,
    production=tuple(({"b": b}, {"combine": "several"}, "normal") for b in (4, 16, 64)),
)
