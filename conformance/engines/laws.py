"""Two separate verdicts: is it the model of the checkpoint, and does a configuration leave the engine's own text unchanged?

*Same model?* The plain output of a prompt against the oracle, teacher-forced along the engine's tokens. With l the oracle's
logits, B the bound of `oracle` and x the token emitted,

    max l - l_x <= 2 B            every token                                      (1)
    |log p_engine(x) - log p_x| <= 2 B                                             (2)

*Lossless?* Every configuration against the engine's own plain output. At the first token at which they differ, a and b,

    near tie:  |l_a - l_b| <= 2 B  and  max l - l_b <= 2 B                         (3)

and nothing after it is compared, because the prefixes differ. Without an oracle no difference is a near tie.

Engines that do not compute the log-probability of a draft write exactly 0 for it. Under speculation (2) leaves those out, and

    log p_engine(x) = 0   only if   |log p_x| <= 2 B                               (4)

is a separate law; a failure of it does not end the configuration. An engine that gives none is "not judged".
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ssmspec_ref.near_ties import first_difference
from ssmspec_ref.shapes import Array

from .errors import EngineFailed
from .oracle import Oracle
from .protocol import Answer, Options, Request

Outcome = Literal["passed", "near tie", "differs", "refused", "died", "not exercised", "not judged", "not observable"]
SAME = ("tokens", "log-probabilities")
LOSSLESS = (
    "repeated", "speculation", "batch", "join", "cancel", "stop", "continuation", "fork", "chunk", "cache", "preemption",
    "graphs", "seed", "drafts", "drafter", "started again", "drafter followed", "log-probabilities kept",
    "log-probabilities of drafted tokens", "sampled law",
)  # fmt: skip
LAWS = {
    "tokens": "same model: every token of a plain run is the oracle's best, or within the bound of it",
    "log-probabilities": "same model: the log-probability of every token lies within the bound of the oracle's",
    "repeated": "a prompt answered again, after other requests, gets the same answer",
    "speculation": "the same tokens with drafts as without",
    "batch": "the same tokens in a batch as alone",
    "join": "the same tokens when joining running requests as alone",
    "cancel": "the same tokens while others are cancelled as alone; a cancelled request gives the first of its plain tokens",
    "stop": "the tokens of the plain output, cut after the first stop token or at the budget",
    "continuation": "the same tokens after a prompt that continues an earlier answer as after that prompt alone",
    "fork": "the same tokens after a prompt that shares a prefix with an earlier one as after that prompt alone",
    "chunk": "the same tokens after a prompt read in chunks as after one read whole",
    "cache": "the same tokens with the prefix cache as without",
    "preemption": "the same tokens for a request that is preempted and restarted as without preemption",
    "graphs": "the same tokens with recorded or compiled steps as without",
    "seed": "sampled with a seed: the same tokens with drafts or in a batch as plain and alone",
    "started again": "a process that has run the engine can start it again, as the protocol requires",
    "drafts": "the same tokens for requests that set their own number of drafts as without, and no more drafts than that",
    "drafter": "the same tokens for requests that name their own drafter as without drafts, and that drafter's drafts",
    "sampled law": "sampled tokens have the distribution of the oracle, each independent of the others",
    "drafter followed": "at least as many drafts are accepted as the drafter's own predictions for the same text give",
    "log-probabilities kept": "the log-probabilities of every configuration lie within the bound of the oracle's",
    "log-probabilities of drafted tokens": "no log-probability is exactly 0 unless the token is certain",
}
FAILED = "EngineFailed: "
COUNTED = ("drafts", "drafter")
"""Laws of requests that have their own settings, which counts of drafts can break."""
FROM_TEXT = ("ngram", "lookup")
"""Drafters whose drafts all occur before in the request's own text."""
RARE = 0.02
"""The fraction of near ties in a cell above which they may not be rounding, so the result is unknown."""


@dataclass(frozen=True)
class Finding:
    """What is wrong with one answer: the position, the expected and the actual token, the gap and the bound, in logits."""

    law: str
    request: Request
    at: int
    expected: int | float | None
    came: int | float | None
    gap: float = float("nan")
    bound: float = float("nan")
    why: str = ""
    answer: tuple[int, ...] = ()
    plain: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """What is wrong: a wrong state shows in tokens or in log-probabilities, so these are one kind. An error in an
        answer is a separate kind, with any numbers in its text."""
        if self.law == "died" and self.why.startswith(FAILED):
            return re.sub(r"\d+", "#", self.why)
        return self.law if self.law in ("died", "drafter followed", *COUNTED) else "wrong"

    def __str__(self) -> str:
        if self.law == "sampled law":
            return f"{self.why}: {self.came} from the distribution of the model; chance explains at most {self.expected}"
        if self.law == "drafter followed":
            return (
                f"{self.came} drafts were accepted; the drafter's own predictions for this text give at least {self.expected}"
            )
        if self.law == "drafts":
            return f"{self.came} tokens were drafted; {self.request.drafts} a window are {self.expected} at most"
        if self.law == "drafter":
            return (
                f"{self.came} drafts of the drafter {self.request.drafter} were accepted, but only {self.expected} tokens of "
                "the answer occur in its text before, where this drafter takes them from"
            )
        where = f"token {self.at}: expected {self.expected}, got {self.came}"
        gap = "" if np.isnan(self.gap) else f"; {self.gap:.3g} logits apart, rounding explains at most {self.bound:.2g}"
        return f"{where}{gap}{f'; {self.why}' if self.why else ''}"


def failure_of(request: Request, error: EngineFailed) -> Finding:
    """An error that an engine answered with."""
    return Finding("died", request, 0, None, None, why=f"{FAILED}{error}")


@dataclass
class Cell:
    """One law in one configuration."""

    counts: Counter[str] = field(default_factory=Counter)

    def outcome(self) -> Outcome:
        for bad in ("died", "differs"):
            if self.counts[bad]:
                return bad
        judged = self.counts["passed"] + self.counts["near tie"]
        if not judged:
            return "refused" if self.counts["refused"] else "not judged" if self.counts["not judged"] else "not exercised"
        return "near tie" if self.counts["near tie"] > max(1, RARE * judged) else "passed"


def cut(ids: Sequence[int], most: int, stop: Sequence[int]) -> tuple[int, ...]:
    """Plain output cut by a budget and stop tokens; a stop wins if both fall on one token."""
    for n, token in enumerate(ids[:most]):
        if token in stop:
            return tuple(ids[: n + 1])
    return tuple(ids[:most])


def same_model(oracle: Oracle, request: Request, answer: Answer) -> list[Finding]:
    """(1) and (2) for a plain answer; (2) only for sampled tokens."""
    if not answer.ids:
        return [Finding("tokens", request, 0, None, None, why="the answer has no token")]
    forward = oracle((*request.ids, *answer.ids[:-1]))
    first = len(request.ids) - 1
    found = []
    if not request.temperature:
        for n, token in enumerate(answer.ids):
            logits, bound = forward.logits[first + n], 2 * forward.bound[first + n]
            if not 0 <= token < len(logits) or not logits.max() - logits[token] <= bound:
                gap = float(logits.max() - logits[token]) if 0 <= token < len(logits) else float("nan")
                found.append(Finding("tokens", request, n, int(logits.argmax()), token, gap, float(bound), answer=answer.ids))
                break
    wrong = probabilities(oracle, request, answer, "log-probabilities")
    return found + ([] if wrong is None else [wrong])


def probabilities(oracle: Oracle, request: Request, answer: Answer, law: str, speculates: bool = False) -> Finding | None:
    """(2) for the reported log-probabilities."""
    if answer.logprobs is None or not answer.ids:
        return None
    forward, first = oracle((*request.ids, *answer.ids[:-1])), len(request.ids) - 1
    for n, (token, came) in enumerate(zip(answer.ids, answer.logprobs, strict=True)):
        if came is None or (speculates and came == 0.0):
            continue
        exact, bound = float(forward.logprobs()[first + n, token]), float(2 * forward.bound[first + n])
        if not abs(came - exact) <= bound:
            why = "log-probability"
            return Finding(law, request, n, round(exact, 7), came, abs(came - exact), bound, why, answer.ids)
    return None


def zero(oracle: Oracle, request: Request, answer: Answer) -> Finding | None:
    """(4): the first token whose log-probability is given as 0 and is another."""
    if answer.logprobs is None or 0.0 not in answer.logprobs:
        return None
    forward, first = oracle((*request.ids, *answer.ids[:-1])), len(request.ids) - 1
    for n, (token, came) in enumerate(zip(answer.ids, answer.logprobs, strict=True)):
        exact, bound = float(forward.logprobs()[first + n, token]), float(2 * forward.bound[first + n])
        if came == 0.0 and not abs(exact) <= bound:
            why = f"log-probability; 0 of {answer.logprobs.count(0.0)} of {len(answer.ids)} tokens"
            return Finding(
                "log-probabilities of drafted tokens", request, n, round(exact, 7), came, abs(exact), bound, why, answer.ids
            )
    return None


def reported(answer: Answer, speculates: bool) -> bool:
    """Whether every log-probability of an answer is really reported."""
    return answer.logprobs is not None and not any(p is None or (speculates and p == 0.0) for p in answer.logprobs)


def followed(
    drafter: Oracle, request: Request, answer: Answer, drafts: int, rereads: bool = False
) -> tuple[Outcome, Finding | None]:
    """Whether the drafter's own tokens were drafted, from the number of accepted drafts of a request that ran alone.

    Windows hold `drafts` drafts and one token of the target. If a window begins later, or a draft fails, no window ends
    earlier because of it. The count is therefore smallest if the first token has no draft, every near tie of the drafter is
    a failure, and the last window has no draft for its last token. An engine that declares `rereads` (llama.cpp does) may
    have one more token without a draft after a rejection. An engine that drafts less for another reason breaks the law.
    """
    if answer.accepted is None or len(answer.ids) < 2:
        return "not judged", None
    forward, first = drafter((*request.ids, *answer.ids[:-1])), len(request.ids) - 1
    ranked = np.sort(forward.logits[first:], axis=-1)
    sure = ranked[:, -1] - ranked[:, -2] > 2 * forward.bound[first:]
    right = sure & (forward.logits[first:].argmax(axis=-1) == np.array(answer.ids))
    least = fewest(right[:-1], drafts, rereads)
    if answer.accepted < least:
        return "differs", Finding("drafter followed", request, 0, least, answer.accepted, answer=answer.ids)
    return ("passed" if least else "not exercised"), None


def fewest(right: Array, drafts: int, rereads: bool) -> int:
    """The fewest drafts that are accepted if those that are `right` are: by the first token of a window, from the last."""
    count = [0] * (len(right) + drafts + 3)
    for at in range(len(right) - 1, 0, -1):
        run = 0
        while run < drafts and at + run < len(right) and right[at + run]:
            run += 1
        rejected = rereads and run < drafts and at + run < len(right)
        count[at] = run + min(count[at + run + 1], count[at + run + 1 + rejected])
    return count[1]


def counted(request: Request, answer: Answer) -> Finding | None:
    """The counts of a request with its own number of drafts, or its own drafter.

        drafted <= drafts windows <= drafts tokens         every window emits a token
        accepted <= tokens that occur before them          for a drafter of n-grams

    A cancelled answer has lost tokens of its last window, and is not judged.
    """
    if answer.finish == "cancelled":
        return None
    if request.drafts is not None and (answer.drafted or 0) > request.drafts * len(answer.ids):
        return Finding("drafts", request, 0, request.drafts * len(answer.ids), answer.drafted, answer=answer.ids)
    text = (*request.ids, *answer.ids)
    known = sum(text[n] in text[:n] for n in range(len(request.ids), len(text)))
    if request.drafter in FROM_TEXT and (answer.accepted or 0) > known:
        return Finding("drafter", request, 0, known, answer.accepted, answer=answer.ids)
    return None


def lossless(oracle: Oracle | None, request: Request, plain: Sequence[int], answer: Answer) -> tuple[Outcome, Finding | None]:
    """(3) for one answer; `plain` is its expected output."""
    expected = tuple(plain[: len(answer.ids)] if answer.finish == "cancelled" and request.cancel else plain)
    n = first_difference(expected, answer.ids)
    if n is None:
        return "passed", None
    a, b = (ids[n] if n < len(ids) else None for ids in (expected, answer.ids))
    told: dict[str, Any] = {"answer": answer.ids, "plain": expected}
    if a is None or b is None:
        why = "it continued after its end" if a is None else f"it ended early, as {answer.finish}"
        return "differs", Finding("", request, n, a, b, why=why, **told)
    if oracle is None:
        return "differs", Finding("", request, n, a, b, why="no oracle says whether this is rounding", **told)
    forward = oracle((*request.ids, *expected[:n]))
    logits, bound = forward.logits[-1], float(2 * forward.bound[-1])
    if b >= len(logits):
        return "differs", Finding("", request, n, a, b, why="a token outside the vocabulary", **told)
    apart = max(abs(logits[a] - logits[b]), logits.max() - logits[b]) if not request.temperature else float("inf")
    outcome: Outcome = "near tie" if apart <= bound else "differs"
    return outcome, Finding("", request, n, a, b, float(apart), bound, **told)


def applied(request: Request, beside: Sequence[Request], options: Options, answer: Answer, made: Sequence[str]) -> list[str]:
    """The laws that apply to an answer; `made` says how its prompt was made."""
    found = ["repeated", *made]
    if (options.speculation or answer.drafted) and request.drafts != 0:
        found.append("speculation")
    if len(beside) > 1:
        found.append("batch")
        found += ["join"] * any(one.after for one in beside) + ["cancel"] * any(one.cancel for one in beside)
    elif request.cancel:
        found.append("cancel")
    if request.stop or len(answer.ids) == request.most:
        found.append("stop")
    if options.chunk and len(request.ids) > options.chunk:
        found.append("chunk")
    if options.cache and answer.cached:
        found.append("cache")
    if options.graphs:
        found.append("graphs")
    if request.temperature:
        found.append("seed")
    if request.drafts is not None:
        found.append("drafts")
    if request.drafter is not None:
        found.append("drafter")
    return found
