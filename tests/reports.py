"""Reports made up for tests."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from conformance.report.stream import Diagnosis, Output, Report, Result, Writer, header, read_report

CONTRACT = "fp32/sequential"


def result(number: int = 0, verdict: str = "pass", used: float = 0.5, **given: Any) -> Result:
    """A result of ssd.scan; its case has its number as seed."""
    case = given.get("case", f"ssd.scan/b1,t3,g1,h1,p1,n1/plain/gentle/s{number}")
    worst = Output(name="y", state=False, utilisation=used, error=used * 1e-6, bound=1e-6, first={"b": 0, "t": 2})
    fields: dict[str, Any] = {"adapter": "mine", "subject": "kernel", "contract": CONTRACT, "operation": "ssd.scan"}
    fields |= {"case": case, "verdict": verdict, "outputs": (worst,), "source": "arXiv:2405.21060"}
    fields |= {"rerun": f"ssmspec conform run --adapter mine --case {case}", "seconds": 0.01}
    if verdict in ("fail", "unknown"):
        fields |= {"failing": "bound", "message": f"y is wrong by {used * 1e-6:.3g}, first at b=0, t=2"}
    return Result(**fields | given)


def inapplicable(operation: str = "delta.scan", reason: str = "not declared") -> Result:
    return Result(
        adapter="mine", subject="kernel", contract="", operation=operation, case="", verdict="inapplicable", reason=reason
    )


def diagnosis(**given: Any) -> Diagnosis:
    fields: dict[str, Any] = {
        "adapter": "mine", "subject": "kernel", "contract": CONTRACT, "operation": "ssd.scan", "verdict": "fail",
        "failures": 1, "cases": 3, "smallest": "ssd.scan/b1,t1,g1,h1,p1,n1/plain/gentle/s0", "failing": "bound",
        "message": "y is wrong <at once> & everywhere", "output": None, "source": "",
        "reason": "", "link": "", "rerun": "again",
    }  # fmt: skip
    return Diagnosis(**fields | given)


def write(path: Path, lines: Iterable[Result | Diagnosis], shard: str = "", **head: Any) -> Path:
    """A whole report of these lines."""
    stream = io.StringIO()
    given = {"tier": "smoke", "adapters": {"mine": "1.0"}, "device": "cpu"} | head
    resumed = given.pop("resumed", 0)
    writer = Writer(stream, header(**given, shard=shard).model_copy(update={"resumed": resumed}))
    for line in lines:
        writer.add(line)
    writer.close()
    path.write_text(stream.getvalue(), encoding="utf-8")
    return path


def made(path: Path, lines: Iterable[Result | Diagnosis], **head: Any) -> Report:
    return read_report(write(path, lines, **head))
