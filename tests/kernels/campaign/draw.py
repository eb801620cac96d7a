"""A uniform draw of places and of one break at each; the same seed gives the same breaks of the same sources."""

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kernels.campaign.keys import function_of, names_of
from tests.kernels.campaign.places import PACKAGE, Place, apply, located


@dataclass(frozen=True)
class Break:
    """A place and the text that stands there instead."""

    place: Place
    text: str

    @property
    def name(self) -> str:
        """What a result is found by, wherever the code lies: see `keys`."""
        at = self.place
        return names_of(PACKAGE).name(located(PACKAGE, at.file), (at.start, at.end), at.kind, self.text)

    def source(self, package: Path) -> bytes:
        """The file, broken."""
        return apply((located(package, self.place.file)).read_bytes(), self.place, self.text)

    def row(self, package: Path) -> dict[str, Any]:
        """What a table says of it: the function, what changed, and its line."""
        before = (located(package, self.place.file)).read_bytes()
        old = before[self.place.start : self.place.end].decode()
        line = before.splitlines()[self.place.line - 1].decode().strip()
        name, module = self.name, Path(self.place.file).stem
        told = {"name": name, "module": module, "function": function_of(name), "kind": self.place.kind}
        return told | {"old": old, "new": self.text, "source": line}


def draw(
    places: Sequence[Place],
    seed: int,
    count: int,
    each: int,
    package: Path,
    void: Collection[str] = (),
    kind: type[Break] = Break,
) -> list[Break]:
    """The first `count` places of a shuffled list, then the next ones of every file that has fewer than `each`.

    A break that is no Python, or that stands in `void` (its module cannot be imported), is passed over.
    """
    order = list(places)
    rng = random.Random(seed)
    rng.shuffle(order)
    chosen: list[Break] = []
    had: Counter[str] = Counter()
    late: list[Break] = []
    files = Counter(p.file for p in places)
    for place in order:
        made = kind(place, rng.choice(place.breaks))
        full = len(chosen) >= count
        if full and all(had[f] >= min(each, files[f]) for f in files):
            break
        if (full and had[place.file] >= each) or (void and made.name in void) or not _is_python(made, package):
            continue
        had[place.file] += 1
        (late if full else chosen).append(made)
    return chosen + late


def redraw(
    places: Sequence[Place], seed: int, counts: Mapping[str, int], package: Path, void: Collection[str] = ()
) -> list[Break]:
    """As many breaks of each file as `counts` has, uniformly among its places: for files that changed after a draw."""
    chosen: list[Break] = []
    for file, count in sorted(counts.items()):
        mine = [p for p in places if p.file == file]
        chosen += draw(mine, seed, min(count, len(mine)), 0, package, void)
    return chosen


def found(places: Sequence[Place], wanted: Collection[str]) -> dict[str, Break]:
    """The breaks of these names that the places have."""
    heads = {(name.partition("#")[0], name.split(":")[1]) for name in wanted}
    files = {file: located(PACKAGE, file) for file in {p.file for p in places}}
    near = [p for p in places if (names_of(PACKAGE).owner(files[p.file], (p.start, p.end)), p.kind) in heads]
    made = (Break(place, text) for place in near for text in place.breaks)
    return {name: one for one in made if (name := one.name) in wanted}


def _is_python(made: Break, package: Path) -> bool:
    source = made.source(package)
    try:
        compile(source, made.place.file, "exec")
    except SyntaxError:
        return False
    return source != (located(package, made.place.file)).read_bytes()
