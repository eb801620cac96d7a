"""From logits to the sampled distribution: penalties, minimum length, temperature, top-k and top-p, in that order.

`process(logits, prompt, output, temperature, top_k, top_p, repetition, presence, frequency, min_tokens, eos) -> p` has one
setting for all rows. `prompt` (b l) and `output` (b t) are tokens padded with -1; the output holds the drafts on the path.
Ties are resolved by index, and masked tokens have probability 0. The equations are those of `ssmspec_ref.accept.processors`.

A row is compared only if no decision is narrow. With x = (l' - max l') / T, l' the penalised logits, and M_i the sum of the
magnitudes added in l'_i, an implementation in arithmetic of unit roundoff u has, to first order,

    |dx_i| <= u (4 (M_i + M_max) / T + (3 + 2 e) |x_i|)   two products, two sums, a difference, a quotient, x log2 e   (1)
    |dw_i| <= w_i (expm1 |dx_i| + (2 e + 1) u)            e ulps of a function, 2 u each                               (2)
    |dp_i| <= p_i (r_i + 3 mean r + (3 i + 6 e + 6) u)    r = |dw| / w; a sum over i tokens and a quotient, thrice     (3)

where the mean is over the distribution: the error of a sum is the mean of its terms' errors. Probabilities below the smallest
normal number may be flushed. Narrow decisions are: two probabilities of rank k and k + 1 that differ by less than 2^-10 of
the first, unless they are ties of the same logit and counts; a mass within 2^-14 of top_p, unless every number in it is
exact; at temperature 0, two logits that differ by less than 2^-16 of the first; with min-p, a probability within 2^-10 of
min_p times the largest. Min-p divides once more: (3) has the mean of r and the sum's and the quotient's errors for each of
three divisions, so half as much more covers a fourth.

Sizes: b rows, i tokens of the vocabulary, l of the prompt, t of the output.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.accept import processors
from ssmspec_ref.accept.processors import Sampling
from ssmspec_ref.contract import SMALLEST_NORMAL, UNIT_ROUNDOFF, NumericContract
from ssmspec_ref.error_bounds.functions import approximated
from ssmspec_ref.errors import Unsupported
from ssmspec_ref.shapes import Array

from ..cases import Case
from ..judge.draw import Draw
from .called import Arguments, pure
from .expected import Expected, allowed, oracles
from .specification import Specification
from .tables import Beside, Further, case_of, cases_of, sizes_of

NARROW_RANK, NARROW_MASS, NARROW_LOGIT = 2.0**-10, 2.0**-14, 2.0**-16
EVEN = 4
"""In every fourth row four equal tokens remain: their masses are exact, and top_p may be met exactly."""
SHARES = {"off": 1.0, "most": 0.8, "half": 0.5}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "temperature": {"one": {}, "low": {"temperature": 0.7}, "high": {"temperature": 3.0}, "zero": {"temperature": 0.0}},
    "top_k": {"off": {}, "some": {"top_k": 5}, "one": {"top_k": 1}, "many": {"top_k": 10**6}},
    "top_p": {name: {"top_p": share} for name, share in SHARES.items()},
    "penalty": {
        "off": {},
        "repetition": {"repetition": 1.3},
        "counts": {"presence": 0.4, "frequency": 0.25},
        "all": {"repetition": 0.8, "presence": -0.3, "frequency": 0.2},
    },
    "minimum": {"off": {}, "reached": {"min_tokens": 2}, "ahead": {"min_tokens": 10**6}},
}
OPTIONS = {name: tuple(values) for name, values in SETTINGS.items()}
EXTREMES: dict[str, dict[str, dict[str, Any]]] = {
    "temperature": {"cold": {"temperature": 0.05}},
    "top_k": {"hundred": {"top_k": 100}},
    "top_p": {"least": {"top_p": 0.05}},
}
RARE = {"level": ("near", "far")} | {name: tuple(values) for name, values in EXTREMES.items()}
LEVEL = 128.0
"""How far from zero all logits of a row are, above or below: beyond 104 exp is 0 or infinite in single precision."""


def setting(case: Case) -> Sampling:
    chosen = Sampling(eos=frozenset((0, case.sizes["i"] // 2)))
    for name, values in SETTINGS.items():
        chosen = replace(chosen, **(values | EXTREMES.get(name, {}))[case.options[name]])
    return chosen


def draw_rows(case: Case, contract: NumericContract) -> Arguments:
    """Logits of scale 3, on a coarse grid in the family tied, a third of them masked in the family masked."""
    draw = Draw(case, contract)
    (b, i), rng = draw.shape("b i"), draw.rng("history")
    logits = draw.normal("logits", "b i", 3.0)
    if case.family == "tied":
        logits = np.round(2 * logits) / 2
    if case.family == "masked":
        masked = draw.rng("masked").random((b, i)) < 0.33
        masked[:, 1 % i] = False
        logits = np.where(masked, -np.inf, logits)
    for row in range(EVEN - 1, b, EVEN):
        alike = draw.rng(f"even {row}").permutation(i)[:EVEN]
        logits[row] = np.where(np.isin(np.arange(i), alike), 1.5, -np.inf)
    if draw.options["level"] == "far":
        logits += np.where(np.arange(b) % 2, -LEVEL, LEVEL)[:, None]
    prompt, output = (rng.integers(0, max(1, i // 2), draw.shape(axes)) for axes in ("b l", "b t"))
    for tokens in (prompt, output):
        counts = rng.integers(0, tokens.shape[1] + 1, b)
        counts[0] = tokens.shape[1]
        tokens[np.arange(tokens.shape[1]) >= counts[:, None]] = -1
    s = setting(case)
    scalars = s.temperature, s.top_k, s.top_p, s.repetition, s.presence, s.frequency, s.min_tokens
    return logits, prompt, output, *scalars, tuple(sorted(s.eos))


def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    logits, prompt, output, temperature, top_k, top_p, repetition, presence, frequency, least, eos = arguments
    settings = Sampling(temperature, top_k, top_p, repetition, presence, frequency, least, frozenset(eos))
    return expect_rows(logits, prompt, output, [settings] * len(logits), contract)


def expect_rows(
    logits: Array, prompt: Array, output: Array, settings: Sequence[Sampling], contract: NumericContract
) -> list[Expected]:
    """The distribution of each row by its own settings.

    Raises: Unsupported if exp has an absolute error, which a sum over the vocabulary would make useless.
    """
    if approximated(contract, "exp"):
        raise Unsupported("probabilities have no bound for an exp with an absolute error; declare none for this operation")
    p, clear, error = np.zeros_like(logits), np.zeros(len(logits), dtype=bool), np.zeros((2, *logits.shape))
    contracts = (contract, *oracles(contract))
    for b, (row, own) in enumerate(zip(logits, settings, strict=True)):
        before, after = ([int(x) for x in tokens[b] if x >= 0] for tokens in (prompt, output))
        p[b] = processors.process(row, before, after, own)
        seen = processors.penalised(row, before, after, own)
        if len(after) < own.min_tokens:
            seen[list(own.eos)] = -np.inf
        size = magnitudes(row, before, after, own)
        clear[b] = decided(row, seen, p[b], own, exact=np.array_equal(seen, row) and len(set(row[row > -np.inf])) == 1)
        for k, c in enumerate(contracts):
            error[k, b] = bound(seen, size, p[b], own.temperature, c) * (1.5 if own.min_p else 1.0)
    total = allowed(list(error[: len(contracts)]), contract)
    return [Expected("p", "b i", p, total, judged=np.broadcast_to(clear[:, None], p.shape))]


def magnitudes(row: Array, before: list[int], after: list[int], settings: Sampling) -> Array:
    """M: the magnitudes added in each penalised logit; 0 if it is masked."""
    count = np.bincount(np.array(after, dtype=np.int64), minlength=row.size)
    scale = max(1.0, settings.repetition, 1 / settings.repetition)
    plain = np.where(np.isfinite(row), np.abs(row), 0.0)
    made: Array = plain * scale + abs(settings.frequency) * count + abs(settings.presence)
    return made


def bound(seen: Array, size: Array, p: Array, temperature: float, contract: NumericContract) -> Array:
    """(1) to (3), and the rounding of the stored result; 0 where the result must be 0."""
    u = UNIT_ROUNDOFF[contract.accumulate]
    kept = p > 0
    if temperature == 0:
        return np.zeros_like(p)
    live, best = np.isfinite(seen), int(np.argmax(seen))
    x = np.where(live, (np.where(live, seen, 0.0) - seen[best]) / temperature, 0.0)
    e = contract.function_ulp
    shift = u * (4 * (size + size[best]) / temperature + (3 + 2 * e) * np.abs(x))  # (1)
    relative = np.expm1(shift) + (2 * e + 1) * u  # (2)
    weight = np.where(live, np.exp(x), 0.0)
    mean = float(np.sum(weight * relative) / weight.sum())
    of_kept = float(np.sum(p * relative))
    total = relative + mean + 2 * of_kept + (3 * p.size + 6 * e + 6) * u  # (3)
    stored = UNIT_ROUNDOFF[contract.io] + total * (1 + UNIT_ROUNDOFF[contract.io])
    flushed = SMALLEST_NORMAL[contract.accumulate] + SMALLEST_NORMAL[contract.io]
    return np.where(kept, p * stored * 1.001 + flushed, 0.0)


def decided(row: Array, seen: Array, p: Array, settings: Sampling, exact: bool) -> bool:
    """Whether no decision is narrow; `exact` says that all remaining tokens are equal and unchanged."""
    order = np.argsort(-seen, kind="stable")
    ranked, given = seen[order], row[order]
    alike = (ranked[1:] == ranked[:-1]) & (given[1:] == given[:-1])
    if settings.temperature == 0:
        return bool(exact or alike[:1].all() or ranked[0] - ranked[1] > NARROW_LOGIT * max(abs(ranked[0]), 1.0))
    law = processors.softmax(seen, settings.temperature)[order]
    if 0 < settings.top_k < len(law):
        first, second = law[settings.top_k - 1], law[settings.top_k]
        if not alike[settings.top_k - 1] and first - second < NARROW_RANK * first:
            return False
    if settings.min_p and not exact and np.any(np.abs(law / law.max() - settings.min_p) < NARROW_RANK * settings.min_p):
        return False
    if settings.top_p < 1 and not exact:
        left = law[: settings.top_k or len(law)]
        masses = np.cumsum(left) / left.sum()
        return bool(np.all(np.abs(masses - settings.top_p) > NARROW_MASS) and ordered(ranked, alike, masses, settings.top_p))
    return True


def ordered(ranked: Array, alike: Array, masses: Array, share: float) -> bool:
    """Whether the last token that top-p keeps and the first that it drops are far apart, or ties."""
    last = int(np.searchsorted(masses, share))
    if last + 1 >= len(masses):
        return True
    gap = ranked[last] - ranked[last + 1]
    return bool(alike[last] or gap > NARROW_RANK)


BASE = {"b": 5, "i": 17, "l": 6, "t": 4}
ROWS = sizes_of("b1", "i300", "b3,t9,l1", "b17,i5")
FURTHER = cases_of(
    "b8/top_k=some,top_p=most/normal",
    "b8/top_p=half,penalty=off/masked",
    "b8/temperature=low,top_p=most,penalty=all/normal",
    "b4,i2000/top_p=most/normal",
    "b2,i5000/normal",
    "b8/level=far/normal",
    "b8/temperature=cold/normal",
    "b3,i300/temperature=high,top_k=hundred/normal",
    "b8,i300/top_p=least,temperature=high/normal",
    "b3,i300,l200,t2/penalty=repetition/normal",
    "b3,i300,l2,t200/penalty=all/normal",
    "b2,i5,l2,t600/penalty=counts/normal",
    "b65/penalty=all/normal",
    "b12,i2000/temperature=zero/normal",
    "b3,i2000/top_k=some/normal",
    "b3,i2000/temperature=high,top_p=most/normal",
    "b3,i2000,l20,t20/penalty=all/normal",
)
"""Top-p of what top-k has left; shares that are met exactly; all at once; larger vocabularies; logits of which no
exponential exists in single precision; low temperatures, many and few tokens left; long histories, counts past 255; many
rows; each setting over more than one block of the vocabulary."""
PRODUCTION: tuple[Further, ...] = (
    case_of("b4/penalty=all/normal"),
    (
        {"b": 8},
        Beside({"penalty": "all"}, {"temperature": "high", "top_k": "many", "top_p": "most", "minimum": "ahead"}),
        "masked",
    ),
    (
        {"b": 16},
        Beside({"penalty": "counts"}, {"temperature": "low", "top_k": "some", "top_p": "half", "minimum": "reached"}),
        "normal",
    ),
    ({"b": 64}, Beside({"penalty": "counts"}, {"temperature": "zero", "minimum": "reached"}), "normal"),
)
"""Rows of a batch, with several settings at once as requests have them."""
SPECIFICATIONS = (
    Specification(
        operation="acceptance.process",
        base=BASE,
        rows=ROWS,
        options=OPTIONS,
        families=("normal", "tied", "masked"),
        sources={
            "": "SpecInfer (arXiv:2305.09781), section 4.3: the law that plain decoding samples from",
            "top_p": "arXiv:1904.09751, section 3.1",
            "penalty": "arXiv:1909.05858, section 4.1",
        },
        draw=draw_rows,
        expect=expect,
        run=pure,
        further=FURTHER,
        production=PRODUCTION,
        rare=RARE,
    ),
)
