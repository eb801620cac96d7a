"""Which arguments a compiled kernel reads and writes: every access of its PTX to global memory, by the argument it comes
from.

The registers from which an address is computed are traced back to pointers among the kernel's parameters. A value that was
itself loaded from global memory (a slot, a length) is an index and is not traced. A pointer from shared memory, where layouts
are changed, may be any that was stored there. So a kernel in which every store has owners, and none is S, does not write S,
whatever its arguments are.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ADDRESS = r"\[\s*(%\w+)[^\]]*\]"
MEMORY = re.compile(
    r"(?P<op>ld|st|atom|red)\.(?:(?!shared|param|local)[\w:]+\.)*?global(?P<how>[\w.:]*)\s+(?P<operands>[^;]*);"
    r"|(?P<copy>cp\.async\.c[ag]\.shared\.global)[\w.:]*\s+\[[^\]]*\],\s*(?P<source>\[[^\]]*\]),\s*(?P<size>\w+)"
)
PARAMETER = re.compile(r"ld\.param\.\w+\s+(%\w+),\s*\[\w+_param_(\d+)\]")
ASSIGNED = re.compile(r"^\s*(?:@!?%p\d+\s+)?(?!ld\.|st\.|atom\.|red\.|cp\.)[a-z][\w.:]*\s+(\{[^}]*\}|%\w+),\s*([^;]*);")
PUT = re.compile(r"st\.shared[\w.:]*\.b64\s+\[[^\]]*\],\s*(\{[^}]*\}|%\w+)")
TAKEN = re.compile(r"ld\.shared[\w.:]*\.b64\s+(\{[^}]*\}|%\w+)")
REGISTER = re.compile(r"%\w+")


@dataclass(frozen=True)
class Access:
    """One instruction: its kind, the bytes that a thread moves with it, and the arguments that its address comes from.

    Without owners, the origin of the address is unknown.
    """

    kind: str
    bytes: int
    owners: frozenset[str]


def accesses(ptx: str, parameters: Sequence[tuple[str, str]]) -> list[Access]:
    """Every load, store, atomic and asynchronous copy from or to global memory."""
    sources = _sources(ptx)
    pointers = {i: name for i, (name, kind) in enumerate(parameters) if kind.startswith("*")}
    starts = {register: pointers[int(i)] for register, i in PARAMETER.findall(ptx) if int(i) in pointers}
    return [Access(kind, size, _owners(register, sources, starts)) for kind, size, register in _instructions(ptx)]


def _sources(ptx: str) -> dict[str, set[str]]:
    """For each register, those from which it is computed."""
    found: dict[str, set[str]] = {}
    put = {register for stored in PUT.findall(ptx) for register in REGISTER.findall(stored)}
    for line in ptx.splitlines():
        if taken := TAKEN.search(line):
            for register in REGISTER.findall(taken[1]):
                found.setdefault(register, set()).update(put)
        if assigned := ASSIGNED.match(line):
            for register in REGISTER.findall(assigned[1]):
                found.setdefault(register, set()).update(REGISTER.findall(assigned[2]))
    return found


def _instructions(ptx: str) -> Iterator[tuple[str, int, str]]:
    for m in MEMORY.finditer(ptx):
        if m["copy"]:
            yield "load", int(m["size"], 0), _address(m["source"])
        else:
            kind = {"ld": "load", "st": "store"}.get(m["op"], "atomic")
            yield kind, _width(m["how"]), _address(m["operands"])


def _address(operands: str) -> str:
    found = re.search(ADDRESS, operands)
    if found is None:
        raise ValueError(f"no address in {operands!r}")
    return found[1]


def _width(how: str) -> int:
    """Bytes of `.v4.b32` and the like."""
    vector, bits = re.search(r"\.v(\d)", how), re.findall(r"\.[bfsu](\d+)", how)
    return int(bits[-1]) // 8 * (int(vector[1]) if vector else 1)


def _owners(register: str, sources: dict[str, set[str]], starts: dict[str, str]) -> frozenset[str]:
    seen, open_, owners = set(), [register], set()
    while open_:
        one = open_.pop()
        if one in seen:
            continue
        seen.add(one)
        if one in starts:
            owners.add(starts[one])
        open_ += sources.get(one, ())
    return frozenset(owners)


def histogram(sass: str) -> Counter[str]:
    """How often each machine instruction occurs in a disassembly, modifiers included."""
    return Counter(re.findall(r"^\s+/\*[0-9a-f]{4,6}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", sass, re.M))


def wide_loads(ops: Counter[str], width: int = 16) -> int:
    """Instructions that load at least `width` bytes per thread from global memory."""
    bits = "|".join(str(n) for n in (64, 128, 256) if n >= 8 * width)
    return sum(n for op, n in ops.items() if op.startswith(("LDG", "LDGSTS")) and re.search(rf"\.({bits})", op))
