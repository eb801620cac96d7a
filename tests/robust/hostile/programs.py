"""Attacks by programs: each declares what is right, and answers a call with what stands here."""

from tests.robust.hostile.corpus import REFUSED, program

TEMPLATE = """
import json, os, signal, sys, time
from pathlib import Path
import numpy as np
NONE = {"D": ["off"], "z": ["off"], "dt_bias": ["off"], "softplus": ["on"], "dt_limit": ["off"]}
DECLARED = {"name": "hostile", "version": "1", "subjects": [{"name": "attack", "operations": {"ssd.scan": {"contract": {}}}}]}
def say(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()
for line in sys.stdin:
    question = json.loads(line)
    if question["do"] == "declare":
        DECLARE
        say(json.dumps(DECLARED))
        continue
    out = Path(question["outputs"])
    CALL
"""
OUTPUTS = 'say(json.dumps({"outputs": ["y", "S"]}))'


def source(call: str, declare: str = "pass") -> str:
    def indented(text: str, by: int) -> str:
        return text.replace("\n", "\n" + " " * by)

    return TEMPLATE.replace("DECLARE\n", indented(declare, 8) + "\n").replace("CALL", indented(call, 4))


def add(name: str, does: str, call: str, *kinds: str, said: str, quick: bool = False, declare: str = "pass") -> None:
    program(name, does, source(call, declare), *kinds, said=said, quick=quick)


add("program_ends", "Ends.", "sys.exit(7)", "error", said="exit code 7")
add("program_is_killed", "Is killed.", "os.kill(os.getpid(), 9)", "error", said="ended by signal 9", quick=True)
add("program_hangs", "Hangs.", "time.sleep(600)", "timeout", said="no answer within")
add(
    "program_leaves_a_child",
    "Ends, while a child in a session of its own holds its output.",
    "if os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nos._exit(0)",
    "timeout", "error",
    said="no answer within|exit code 0", quick=True,
)  # fmt: skip
add("program_prints", "Prints a verdict.", 'say("31 pass")', "error", said="which is not an answer")
add(
    "program_prints_bytes",
    "Prints no UTF-8.",
    'os.write(1, b"\\xff\\xfe\\x00\\n")',
    "error",
    said="which is not an answer",
)
add("program_says_a_surrogate", "Fails with a lone surrogate.", "say('{\"error\": \"\\\\ud800\"}')", "error",
    said=r"\\ud800", quick=True)  # fmt: skip
add("program_says_escapes", "Fails with escapes.", 'say(json.dumps({"error": "\\x1b[2J\\x1b[32mpass\\n\\n"}))', "error",
    said=r"\\x1b\[2J")  # fmt: skip
add("program_never_ends_its_line", "Prints a line without an end.", 'while True: os.write(1, b"x" * 65536)', "error",
    said="which is not an answer")  # fmt: skip
add("program_nests", "Answers with JSON deeper than a stack.", 'say("[" * 200000)', "error", said="which is not an answer")
add("program_counts", "Answers with a number of a hundred thousand digits.", 'say("{\\"outputs\\": " + "9" * 100000 + "}")',
    "error", said="which is not an answer")  # fmt: skip
add("program_lists", "Answers with a list.", 'say("[1, 2]")', "error", said="which is not an answer")
add("program_names_a_number", "Names a number as its outputs.", "say('{\"outputs\": 5}')", "error", said="cannot be read")
add("program_writes_nothing", "Names outputs that it has not written.", OUTPUTS, "error", said="cannot be read")
add("program_writes_half", "Writes half a file.", f'out.write_bytes(b"\\x40" + bytes(7) + b"{{")\n{OUTPUTS}', "error",
    said="cannot be read")  # fmt: skip
add("program_announces_exabytes", "Writes a header of exabytes.", f'out.write_bytes(b"\\xff" * 7 + b"\\x7f{{}}")\n{OUTPUTS}',
    "error", said="cannot be read")  # fmt: skip
add("program_writes_a_pipe", "Writes a pipe that nobody fills.", f"os.mkfifo(out)\n{OUTPUTS}", "timeout", "error",
    said="no answer within|cannot be read")  # fmt: skip
add("program_writes_a_device", "Links its outputs to a device without an end.", f'out.symlink_to("/dev/zero")\n{OUTPUTS}',
    "timeout", "error", "memory", said="no answer within|cannot be read|Memory|memory", quick=True)  # fmt: skip
add("program_writes_a_folder", "Makes a folder of its outputs.", f"out.mkdir()\n{OUTPUTS}", "error", said="cannot be read")
add("program_closes_its_output", "Closes its output, and hangs.", "os.close(1)\ntime.sleep(600)", "error", "timeout",
    said="closed its output|no answer within")  # fmt: skip
add("program_floods_its_errors", "Fills the standard error, and ends.",
    'for _ in range(50): os.write(2, b"\\x1b[31m\\n" * 200000)\nsys.exit("last words\\x1b[0m")', "error",
    said=r"last words\\x1b")  # fmt: skip
add("program_eats_memory", "Takes memory for ever.", "held = []\nwhile True: held.append(np.ones(1 << 24))", "error",
    "memory", said="MemoryError|--memory", quick=True)  # fmt: skip
add("program_speaks_another_protocol", "Speaks a protocol of the future.", "pass", REFUSED, said="speaks protocol 99",
    quick=True, declare='DECLARED["protocol"] = 99')  # fmt: skip
add("program_is_a_list", "Declares a list.", "pass", REFUSED, said="which is not an answer", declare="DECLARED = [1]")
add("program_has_a_surrogate_for_a_name", "Declares a name that no report can hold.", "sys.exit(3)", "error",
    said="exit code 3", declare='DECLARED["name"] = "\\ud800\\x1b[2J"')  # fmt: skip
