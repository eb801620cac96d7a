"""A server of states that is a program: the example passes, and what it saves, finds, forks or moves wrongly fails."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

from conformance.adapters.reference_parts.ranks import WAYS
from conformance.judge.verdict import Judgement, judge
from conformance.run.program import Program, function
from conformance.suite import find
from ssmspec_ref.contract import Capability, NumericContract, Verdict

from .judging import fails

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "states.py"
SOURCE = EXAMPLE.read_text()
CASE = "life.states/b3,t4,{},p2,n2,w3/D=off,{}kind=mamba2/gentle/s0"
PREFIX, BLOCKS = CASE.format("j40,g1,h1", ""), CASE.format("j30,g1,h2", "block=one,")
FORK, MOVE = (CASE.format("j30,g1,h2", f"script={way},") for way in ("fork", "move"))
RANKS = CASE.format("j30,g2,h4", "ranks=one_and_heads,script=move,")


def judged(folder: Path, source: str, *names: str) -> list[Judgement]:
    """Cases of a program."""
    (folder / "program.py").write_text(source)
    with closing(Program(f"{sys.executable} {folder / 'program.py'}")) as program:
        capability = Capability(function(program, "ssd", "life.states"), NumericContract(function_ulp=3), WAYS)
        return [judge(specification, capability, case) for specification, case in map(find, names)]


def changed(old: str, new: str) -> str:
    assert SOURCE.count(old) == 1
    return SOURCE.replace(old, new)


def test_the_example_passes_every_script(tmp_path: Path) -> None:
    found = judged(tmp_path, SOURCE, PREFIX, BLOCKS, FORK, MOVE, RANKS)
    assert [(j.verdict, j.message) for j in found] == [(Verdict.PASS, "")] * 5


WRONG = {
    "a state is saved under a boundary at the end of a call": (
        PREFIX,
        "        self.running[slot] = seen, M, S\n        return {}, {\"y\"",
        "        last = len(seen) // self.block * self.block\n"
        "        self.saved |= {seen[:last]: (M, S)} if seen[:last] in self.saved else {}\n"
        "        self.running[slot] = seen, M, S\n        return {}, {\"y\"",
    ),
    "the key of a prefix is its last token and its length": (
        PREFIX,
        "found = max((n for n in range(len(prompt)) if prompt[:n] in self.saved), default=0)",
        "self.saved |= {prompt[:len(k)]: v for k, v in list(self.saved.items()) if prompt[:len(k)][-1:] == k[-1:]}\n"
        "        found = max((n for n in range(len(prompt)) if prompt[:n] in self.saved), default=0)",
    ),
    "a prefix that is the whole prompt is taken, and its last token fed again": (
        BLOCKS,
        "self.saved[prompt[:found]] if found",
        "self.saved[prompt if prompt in self.saved else prompt[:found]] if found",
    ),
    "the window of the convolution is not saved": (
        PREFIX,
        "self.saved[seen] = M, S",
        "self.saved[seen] = 0 * M, S",
    ),
    "saved states are rounded": (
        PREFIX,
        "self.saved[seen] = M, S",
        "self.saved[seen] = M, S.astype(np.float16).astype(np.float32)",
    ),
    "a prompt begins with what its slot held": (
        PREFIX,
        "else self.layer.zero()))",
        "else self.old.get(slot, self.layer.zero())))",
    ),
    "evicted prefixes are found": (PREFIX, "self.saved = {}\n        return", "return"),
    "sequences are written in place, where a fork and a saved state lie": (
        FORK,
        "        self.running[slot] = seen, M, S\n        return {}, {\"y\"",
        "        self.running[slot][1][:], self.running[slot][2][:] = M, S\n"
        "        self.running[slot] = seen, *self.running[slot][1:]\n        return {}, {\"y\"",
    ),
    "a fork is written to the next slot too": (
        FORK,
        "self.running[to] = ",
        "self.running[(slot + 1) % 3] = self.running[to] = ",
    ),
    "an export is a note of the slot": (
        MOVE,
        "        seen, M, S = self.running[slot]\n        M, S = self.layer.cut(M, S, self.ranks)\n"
        "        return {}, {\"seen\": np.array(seen, np.int64), \"M\": M, \"S\": S}",
        "        return {}, {\"seen\": np.array([HERE.index(self), slot])}",
    ),
    "the window of the convolution is not transferred": (
        MOVE,
        "given[\"seen\"].tolist()), M, S",
        "given[\"seen\"].tolist()), 0 * M, S",
    ),
    "a contiguous piece of x, B and C goes to each rank": (
        RANKS,
        "        return held\n",
        "        return [min(rank * (start // ranks), start - len(held)) + n for n in range(len(held))]\n",
    ),
    "groups are dealt to the ranks in turn": (
        RANKS,
        "first = rank * count // ranks",
        "first = rank * max(1, count // ranks) % count",
    ),
}  # fmt: skip
KEPT = {
    "self.running, self.saved = {}, {}": "self.running, self.saved, self.old = {}, {}, {}\n        HERE.append(self)",
    "del self.running[slot]": "self.old[slot] = self.running.pop(slot)[1:]",
    "class Server:": "HERE = []\n\n\nclass Server:",
    'M, S = self.layer.joined(given["M"], given["S"])\n': 'seen = given["seen"].tolist()\n'
    '        held = HERE[seen[0]].running.get(seen[1]) if "M" not in given else None\n'
    '        M, S = self.layer.joined(given["M"], given["S"]) if held is None else held[1:]\n',
}
"""What the faults above need: what a slot held, and where a server is."""


def with_kept(source: str) -> str:
    for here, there in KEPT.items():
        source = source.replace(here, there)
    return source


@pytest.mark.parametrize("fault", WRONG)
def test_what_a_server_does_wrongly_fails(tmp_path: Path, fault: str) -> None:
    case, old, new = WRONG[fault]
    source = with_kept(changed(old, new))
    fails(*judged(tmp_path, source, case), "bound")


def test_what_the_faults_keep_is_no_fault(tmp_path: Path) -> None:
    assert all(SOURCE.count(here) == 1 for here in KEPT)
    assert [j.verdict for j in judged(tmp_path, with_kept(SOURCE), PREFIX, MOVE)] == [Verdict.PASS] * 2


@pytest.mark.parametrize(
    ("old", "new", "case", "said"),
    [
        ('{"found": found}', "{}", PREFIX, "begin was answered with found = None; give how many tokens"),
        ('{"found": found}', '{"found": len(prompt)}', PREFIX, "from 0 to"),
        ('{"found": found}', '{"found": True}', PREFIX, "found = True"),
        ('return {}, {"seen": np.array(seen, np.int64), "M": M, "S": S}', "return {}, {}", MOVE, "export wrote no file"),
        ("def evict(", "def clear(", PREFIX, "AttributeError: 'Server' object has no attribute 'evict'"),
    ],
)
def test_an_answer_that_cannot_be_used_is_told(tmp_path: Path, old: str, new: str, case: str, said: str) -> None:
    fails(*judged(tmp_path, changed(old, new), case), "error", said)
