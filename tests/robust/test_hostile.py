"""The corpus of attacks: none is green, none hangs, none ends the run, each is told by its name; nothing is left of it."""

import json
import os
import re
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conformance.refusal import FAILED, REFUSED
from conformance.report.stream import read_report
from tests.commands import call
from tests.robust.hostile import corpus
from tests.robust.hostile.lines import PLANTED
from tests.robust.hostile.marked import MARK, marked

pytestmark = pytest.mark.timeout(900)
CASE = "ssd.scan/b1,t3,g1,h2,p2,n2/plain/gentle/s0"
SHORT, LONG, LONGEST = 1.5, 60.0, 240.0
"""Seconds of a call that hangs, of another, and of a whole run: loading, the calls and the end of everything."""
MEMORY = 0.5
"""GiB."""
CORPUS = corpus.corpus()
RUN = [pytest.param(a, id=a.name, marks=[] if a.quick else pytest.mark.robust) for a in CORPUS.values()]
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def test_the_corpus_holds_eighty_attacks_and_ci_runs_twenty() -> None:
    assert len(CORPUS) >= 80
    assert sum(attack.quick for attack in CORPUS.values()) >= 20
    assert all(attack.kinds and attack.does for attack in CORPUS.values())


@pytest.mark.parametrize("attack", RUN)
def test_an_attack_fails_by_name_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: corpus.Attack
) -> None:
    mark = f"{attack.name}-{os.getpid()}"
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv(PLANTED, str(tmp_path / "planted"))
    monkeypatch.setenv("SSMSPEC_LISTED", str(tmp_path / "list.toml"))
    words = ["--adapter", f"{corpus.__name__}:{attack.name}"]
    if attack.source:
        (tmp_path / "program.py").write_text(attack.source)
        words = ["--program", f"{sys.executable} {tmp_path / 'program.py'}"]
    words += ["--adapter", f"{corpus.__name__}:right", "--case", CASE, "--memory", MEMORY]
    words += ["--timeout", SHORT if attack.kinds[0] == "timeout" else LONG]
    begun = time.monotonic()
    made = call("run", *words, "--report", tmp_path / "report")
    assert time.monotonic() - begun < LONGEST
    assert marked(mark) == []
    assert not (tmp_path / "planted").exists()
    assert not UNSAFE.search(made.output), "a terminal would obey it"
    if attack.kinds == (corpus.REFUSED,):
        assert made.exit_code == REFUSED, made.output
        assert re.search(attack.said, made.output)
        assert not (tmp_path / "report").exists()
        return
    assert made.exit_code == FAILED, made.output
    report = read_report(tmp_path / "report")
    (judged,) = [r for r in report.results if r.case and r.adapter != "right"]
    (other,) = [r for r in report.results if r.case and r.adapter == "right"]
    assert other.verdict == "pass", "the run goes on"
    assert judged.verdict in ("fail", "unknown")
    assert judged.failing in attack.kinds, judged.message
    assert re.search(attack.said, judged.message), judged.message
    for text in (judged.adapter, judged.subject, judged.message, judged.rerun):
        assert not re.search(rf"{UNSAFE.pattern}|\n", text)
        assert len(text) < 5000
    assert "all cases pass" not in json.dumps(report.header.model_dump(mode="json"))
    suites = ElementTree.parse(tmp_path / "report" / "junit.xml").getroot()
    assert int(suites.attrib["failures"]) + int(suites.attrib["errors"]) == 1
    assert "1 of 2 pass, 1 not" in (tmp_path / "report" / "badge.svg").read_text()
    assert "<script>alert" not in (tmp_path / "report" / "report.html").read_text()
