"""Adapters by name: one that ships (`transformers`), a package with a module `adapter`, a module with a function `adapter`,
or `package.module:factory`."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ssmspec_ref.contract import Adapter, Capability, Decoding, Graph, Limits, NumericContract, Subject
from ssmspec_ref.errors import Unsupported
from ssmspec_ref.options.extras import installing
from ssmspec_ref.options.words import nearest

from .. import adapters
from ..errors import AdapterUnavailable, ConformanceError, MalformedAdapter, UnknownAdapter
from ..isolation import text
from .calls import tail

PROGRAM = "program "
"""The prefix of the command of a program that is tested through its standard input."""
EXTRAS = {"torch": "torch", "transformers": "transformers", "triton": "kernels"}
"""The extra of our package that installs a package."""
DISTRIBUTIONS = {
    "fla": "flash-linear-attention",
    "mamba_ssm": "mamba-ssm",
    "mlx_lm": "'mlx[cpu]' mlx-lm",
    "causal_conv1d": "causal-conv1d",
}
"""The distribution that installs a package, if its name differs."""
WHEELS = {"vllm": "vllm==0.33.0", "sglang": "sglang==0.5.23", "flashinfer": "flashinfer-python==0.7.2.post1"}
"""The wheel of a package of which a few source files are enough."""


def shipped() -> list[str]:
    """The adapters that ship: the modules of `adapters` with a function `adapter`."""
    return [module.name for module in pkgutil.iter_modules(adapters.__path__) if module.name in adapters.NAMES]


def ours(name: str) -> bool:
    """Whether a name on the command line is that of an adapter that ships; only these have a list of known failures."""
    return name in shipped() or name.startswith(f"{adapters.__name__}.")


def _home(name: str) -> str:
    """The module of an adapter, by its name. Raises: UnknownAdapter."""
    if name in shipped():
        return f"{adapters.__name__}.{name}"
    spec = find_spec(name) if name.isidentifier() else None
    if spec is not None:
        inside = spec.submodule_search_locations and find_spec(f"{name}.adapter")
        return f"{name}.adapter" if inside else name
    module, dot, factory = name.rpartition(".")
    if dot and find_spec(name.partition(".")[0]) is not None:
        raise UnknownAdapter(f"{name!r} has no factory; give {module}:{factory} or {name}:adapter")
    near = nearest(name, [*shipped(), *(file.stem for file in Path().glob("*.py"))])
    raise UnknownAdapter(
        f"{name!r} is neither a module in this folder or on PYTHONPATH, nor an adapter that ships{near}; "
        f"give one of {', '.join(shipped())}, a package with a module `adapter`, or package.module:factory"
    )


def load(name: str, device: str = "cpu") -> Adapter:
    """Load the adapter with this name, for a device.

    Raises: UnknownAdapter, AdapterUnavailable, MalformedAdapter.
    """
    if name.startswith(PROGRAM):
        from .program import adapter

        return adapter(name.removeprefix(PROGRAM), device)
    module, _, factory = name.partition(":")
    if module.endswith(".py"):
        stem = module.removesuffix(".py").replace("\\", "/").rsplit("/", 1)[-1]
        raise UnknownAdapter(
            f"{module} is a file; give its module, {stem}:{factory or 'adapter'}, and put its folder on PYTHONPATH"
        )
    if not factory:
        module, factory = _home(name), "adapter"
    try:
        make = getattr(importlib.import_module(module), factory, None)
        if make is None:
            raise UnknownAdapter(
                f"{module} has no {factory}; name a function that returns an Adapter, as package.module:factory"
            )
        chooses = "device" in inspect.signature(make).parameters
        if device != "cpu" and not chooses:
            raise AdapterUnavailable(f"{name} runs on the CPU only, but --device is {device}; omit it")
        made = make(device=device) if chooses else make()
    except ImportError as error:
        missing = (error.name or "").split(".")[0]
        if missing == module.split(".")[0]:
            raise UnknownAdapter(
                f"the adapter {name!r} needs a module {missing!r}, which is not found; "
                "put its folder on the path: PYTHONPATH=FOLDER"
            ) from error
        if missing and not ours(name):
            at = "" if missing not in EXTRAS else f" (ssmspec's extra {EXTRAS[missing]})"
            raise AdapterUnavailable(
                f"{module} cannot be imported, because it imports {missing}: {error}; install {missing}{at}, "
                "or put its folder on PYTHONPATH"
            ) from error
        how = _installing(EXTRAS.get(name, missing)) if missing in EXTRAS else _installing(missing) if missing else str(error)
        raise AdapterUnavailable(f"{name} is not installed ({error}); to test it: {how}") from error
    except Unsupported as error:
        raise AdapterUnavailable(f"{name}: {error}") from error
    except ConformanceError:
        raise
    except Exception as error:  # foreign code: the module or its factory
        raise AdapterUnavailable(f"{name} cannot be loaded: {tail(error, foreign=True)}") from error
    if not isinstance(made, Adapter):
        raise UnknownAdapter(
            f"{module}:{factory} returned a {type(made).__name__}; it must return a ssmspec_ref.contract.Adapter"
        )
    check_form(made)
    return cleaned(made)


def cleaned(made: Adapter) -> Adapter:
    """The adapter with its names and reasons sanitised for printing and storing."""
    subjects = tuple(
        replace(s, name=text.name(s.name), absent={name: text.clean(said) for name, said in s.absent.items()})
        for s in made.subjects
    )
    name, version, homepage = text.name(made.name), text.name(made.version), text.clean(made.homepage)
    return replace(made, name=name, version=version, homepage=homepage, subjects=subjects)


def check_form(made: Adapter) -> None:
    """Raise MalformedAdapter if a part has another type than the contract's, or if nothing is declared."""
    for what in ("name", "version", "homepage"):
        _check(made, what, getattr(made, what), str)
    _check(made, "subjects", made.subjects, tuple)
    _check(made, "decodings", made.decodings, tuple)
    for subject in made.subjects:
        _check(made, "a subject", subject, Subject)
        _check(made, "the name of a subject", subject.name, str)
        _check(made, f"the reasons of {subject.name}", subject.absent, Mapping)
        _check(made, f"the capabilities of {subject.name}", subject.capabilities, Mapping)
        for operation, capability in subject.capabilities.items():
            where = f"{subject.name}, {operation}"
            _check(made, where, capability, Capability)
            _check(made, f"{where}, contract", capability.contract, NumericContract)
            _check(made, f"{where}, limits", capability.limits, Limits)
            _check(made, f"{where}, run", capability.run, Callable)
            _check(made, f"{where}, uncaptured", capability.uncaptured, str)
            if "replayed" in capability.limits.options.get("graph", ()) and not isinstance(capability.run, Graph):
                raise MalformedAdapter(
                    f"{text.name(made.name)}: {where}: the limits name graph=replayed, but its function is no Graph; "
                    "give ssmspec_ref.contract.Graph(prepare), which can be captured, or omit the limit"
                )
            for name, values in capability.limits.options.items():
                if isinstance(values, str):  # the letters of a str would be its values
                    raise MalformedAdapter(
                        f"{text.name(made.name)}: {where}: the limit on {name} is the str {values!r}; "
                        f"it must be a tuple of values, such as ({values!r},)"
                    )
    for decoding in made.decodings:
        _check(made, "a decoding", decoding, Decoding)
    if not made.subjects and not made.decodings:
        raise MalformedAdapter(f"{made.name} declares nothing; give it a Subject with operations, or a Decoding")


def _check(made: Adapter, where: str, came: Any, kind: Any) -> None:
    if not isinstance(came, kind):
        raise MalformedAdapter(f"{text.name(made.name)}: {where} is {type(came).__name__}; it must be a {kind.__name__}")


def _installing(package: str) -> str:
    """How to install a package."""
    if package in EXTRAS:
        return installing(EXTRAS[package])
    if package in WHEELS:
        return f"python -m conformance.adapters.unpack {WHEELS[package]} --into FOLDER, and put FOLDER on PYTHONPATH"
    return f"pip install {DISTRIBUTIONS.get(package, package)}"
