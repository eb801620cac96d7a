"""Closure hashes: everything that a launcher runs, as one text, and a hash of it.

    closure    the definitions that a launcher reaches by name, numbered in the order in which they are reached          (1)
               and those of the classes that its objects may have: subclasses of classes in (1), and for an attribute
               that no class in (1) has, every class of the package that has it                                          (2)
    hash       of the text of (1) and (2)                                                                                (3)
    whole      a hash of the sorted hashes (3) of every function that launches a kernel, itself or by what it calls      (4)

Names of parameters are written only if a caller may depend on them: through a `**`, or a use other than a call. They and the
equal keys of dicts are numbered together; they are written out if another string equals them or not all keys are seen.
"""

import functools
import hashlib
import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path

from .names import Key, Parameter, Reference, Template
from .package import Definition, Package, UnresolvedError
from .template import Writer, is_jit, shape

OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl", "launch_cooperative_grid", "enable_fp_fusion"}
OPTIONS |= {"grid", "warmup", "debug"}
"""Arguments that Triton reads from a launch by name: never numbered."""


class Closures:
    """The closures of a package."""

    def __init__(self, package: Package) -> None:
        self.package = package
        self.templates: dict[Definition, Template] = {}
        self.texts: dict[Definition, str] = {}

    def template(self, definition: Definition) -> Template:
        if definition not in self.templates:
            self.templates[definition] = Writer(self.package, definition).write()
        return self.templates[definition]

    def reached(self, root: Definition) -> list[Definition]:
        """(1), then (2), until neither grows."""
        found, at = {root: 0}, 0
        order = [root]

        def add(definitions: Iterable[Definition]) -> None:
            for definition in definitions:
                if definition not in found:
                    found[definition] = len(order)
                    order.append(definition)

        while at < len(order):
            while at < len(order):
                add(self.template(order[at]).references)
                at += 1
            more = self._subclasses(order) | self._by_attribute(order)
            add(sorted(more - found.keys(), key=lambda d: shape(self.package, d)))
        return order

    def _subclasses(self, order: list[Definition]) -> set[Definition]:
        held = {*order}
        classes = self.package.classes
        return {
            d for d, node in classes.items() if any(Writer(self.package, d).target_of(base) in held for base in node.bases)
        }

    def _by_attribute(self, order: list[Definition]) -> set[Definition]:
        wanted = {name for d in order for name in self.template(d).attributes}
        wanted -= {name for d in order if d in self.methods for name in self.methods[d]}
        return {d for d, names in self.methods.items() if names & wanted}

    @functools.cached_property
    def methods(self) -> dict[Definition, set[str]]:
        """The names of methods and properties of each class."""
        return {d: {s.name for s in node.body if hasattr(s, "name")} for d, node in self.package.classes.items()}

    def text(self, root: Definition) -> str:
        """The closure of a definition: a line for each definition that it reaches."""
        if root not in self.texts:
            order = self.reached(root)
            self.texts[root] = _Numbered(self, order).text()
        return self.texts[root]

    def hash(self, root: Definition) -> str:
        return digest(self.text(root))

    def launches(self, definition: Definition) -> bool:
        """Whether a definition is a host function that launches a kernel, itself or by what it calls."""
        if self.package.function(definition) is None or is_jit(self.package, definition):
            return False
        return any(self.template(d).launches for d in self.reached(definition))

    @functools.cached_property
    def launchers(self) -> list[Definition]:
        return [d for d in self.package.definitions() if self.launches(d)]

    def launcher(self, name: str) -> Definition:
        """The launcher of this name. Raises: UnresolvedError unless there is exactly one."""
        found = [d for d in self.package.definitions() if d.name == name and self.launches(d)]
        if len(found) != 1:
            where = f"{len(found)} launchers are called so" if found else "the package has no launcher of this name"
            raise UnresolvedError(f"{name}: {where}; give one of {', '.join(sorted({d.name for d in self.launchers}))}")
        return found[0]

    def of(self, *names: str) -> str:
        """The hash of some launchers: for one its own, for several (4) over them."""
        return joined(self.hash(self.launcher(name)) for name in names)

    def whole(self) -> str:
        return joined(map(self.hash, self.launchers))


class _Numbered:
    """The definitions of a closure with their numbers."""

    def __init__(self, closures: Closures, order: list[Definition]) -> None:
        self.order, self.templates = order, [closures.template(d) for d in order]
        self.numbers = {d: i for i, d in enumerate(order)}
        self.strings = {text for t in self.templates for text in t.strings}
        self.keys = {token.text for t in self.templates for token in t.tokens if isinstance(token, Key)}
        self.escaped = {d for t in self.templates for d in t.escaped}
        self.filled: dict[Definition, bool] = {}
        for template in self.templates:
            for definition, seen in template.filled.items():
                self.filled[definition] = self.filled.get(definition, True) and seen
        self.told: dict[str, int] = {}

    def text(self) -> str:
        # Names can be numbered only when all parameters are known.
        tokens = (token for t in self.templates for token in t.tokens if isinstance(token, Parameter))
        self.free = {token.name for token in tokens if self.by_name(token.owner) and self.seen(token.owner)}
        self.free &= self.keys - self.strings - OPTIONS
        return "\n".join(" ".join(filter(None, map(self.token, t.tokens))) for t in self.templates)

    def by_name(self, owner: Definition) -> bool:
        return owner in self.escaped or owner in self.filled

    def seen(self, owner: Definition) -> bool:
        return owner not in self.escaped and self.filled.get(owner, False)

    def token(self, token: str | Reference | Key | Parameter) -> str:
        match token:
            case str():
                return token
            case Reference(definition=definition):
                return f"@{self.numbers[definition]}"
            case Key(text=text):
                return self.name(text)
            case Parameter(owner=owner, name=name):
                if not self.by_name(owner) or (self.seen(owner) and name not in self.keys):
                    return ""
                return self.name(name) if self.seen(owner) else json.dumps(name)

    def name(self, text: str) -> str:
        return f"${self.told.setdefault(text, len(self.told))}" if text in self.free else json.dumps(text)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def joined(hashes: Iterable[str]) -> str:
    """For one hash the hash itself, for several a hash of them, sorted."""
    found = sorted(set(hashes))
    return found[0] if len(found) == 1 else digest("\n".join(found))


def of_modules(package: Package, *names: str) -> str:
    """A hash of all that some modules define, independent of their names; what they use from others is not followed."""
    return joined(digest(shape(package, d)) for d in package.definitions() if d.module in names)


def folder_of(package: str) -> Path:
    """The folder of an importable package, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@functools.cache
def kernels() -> Closures:
    """The closures of the installed kernels, from their files at the first call in this process."""
    return Closures(Package(folder_of("ssmspec_kernels")))
