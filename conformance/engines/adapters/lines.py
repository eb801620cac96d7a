"""The engine's side of the protocol: questions on standard input, answers on standard output, with the standard library only.

Write a class with `start(model, options) -> dict` and `generate(requests) -> list of dicts`, and pass an object of it to
`serve`. Output that the engine prints goes to standard error. Raise `Refuse` for a configuration or a request that the engine
does not support.
"""

import json
import os
import sys
import traceback
from typing import Any


class Refuse(Exception):
    """Raise this in `start` or `generate`, before any work, to say why the engine does not support it."""


def serve(engine: Any) -> None:
    """Answer questions until "stop", or until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        if question["do"] == "stop":
            return
        try:
            if question["do"] == "start":
                if question["protocol"] != 1:
                    raise Refuse(f"lines.py knows protocol 1, not {question['protocol']}; copy the one of this ssmspec")
                answer = engine.start(question["model"], question["options"])
            else:
                answer = {"answers": engine.generate(question["requests"])}
        except Refuse as why:
            answer = {"refused": str(why)[:1900]}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:1900]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def ended(ids: list[int], request: dict[str, Any]) -> str:
    """The finish reason of a request."""
    return "stop" if ids and ids[-1] in request.get("stop", ()) else "length"
