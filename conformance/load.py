"""Adapters by name: one that ships (`transformers`), a package with a module `adapter`, a module with a function
of that name, or `package.module:factory`."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from ssmspec_ref.contract import Adapter, Capability, Decoding, Limits, NumericContract, Subject
from ssmspec_ref.errors import Unsupported

from . import adapters
from .bench import tail
from .errors import AdapterUnavailable, ConformanceError, MalformedAdapter, UnknownAdapter

PROGRAM = "program "
"""What stands before the command of a program that is judged through its standard input."""
EXTRAS = {"torch": "torch", "transformers": "transformers", "triton": "kernels"}
"""The extra of ours that installs a package."""
DISTRIBUTIONS = {"fla": "flash-linear-attention", "mamba_ssm": "mamba-ssm"}
"""The name under which a package is installed, where it is another."""
WHEELS = {"vllm": "vllm==0.33.0", "sglang": "sglang==0.5.23", "flashinfer": "flashinfer-python==0.7.2.post1"}
"""The wheel that holds a package of which some sources are enough."""


def shipped() -> list[str]:
    """The adapters that ship: the modules of `adapters` with a function `adapter`."""
    return [module.name for module in pkgutil.iter_modules(adapters.__path__) if module.name in adapters.NAMES]


def _home(name: str) -> str:
    """The module that holds the adapter of a name. Raises: UnknownAdapter."""
    if name in shipped():
        return f"{adapters.__name__}.{name}"
    spec = find_spec(name) if name.isidentifier() else None
    if spec is not None:
        inside = spec.submodule_search_locations and find_spec(f"{name}.adapter")
        return f"{name}.adapter" if inside else name
    raise UnknownAdapter(
        f"no adapter {name!r} ships; give one of {', '.join(shipped())}, "
        "a package with a module `adapter`, or package.module:factory"
    )


def load(name: str, device: str = "cpu") -> Adapter:
    """The adapter of a name, for a device.

    Raises: UnknownAdapter, AdapterUnavailable, MalformedAdapter.
    """
    if name.startswith(PROGRAM):
        from .program import adapter

        return adapter(name.removeprefix(PROGRAM), device)
    module, _, factory = name.partition(":")
    if module.endswith(".py"):
        stem = module.removesuffix(".py").replace("\\", "/").rsplit("/", 1)[-1]
        raise UnknownAdapter(
            f"{module} names a file; name its module, {stem}:{factory or 'adapter'}, its folder on PYTHONPATH"
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
            raise AdapterUnavailable(f"{name} computes on the cpu only, but --device came as {device}; leave it out")
        made = make(device=device) if chooses else make()
    except ImportError as error:
        missing = (error.name or "").split(".")[0]
        if missing == module.split(".")[0]:
            raise UnknownAdapter(
                f"no module {missing!r} to take the adapter {name!r} from; put its folder on the path, PYTHONPATH=FOLDER"
            ) from error
        how = _installing(missing) if missing else str(error)
        raise AdapterUnavailable(f"{name} is not installed here ({error}); to judge it: {how}") from error
    except Unsupported as error:
        raise AdapterUnavailable(f"{name}: {error}") from error
    except ConformanceError:
        raise
    except Exception as error:  # whatever the module or its factory raises
        raise AdapterUnavailable(f"{name} cannot be loaded: {tail(error)}") from error
    if not isinstance(made, Adapter):
        raise UnknownAdapter(f"{module}:{factory} returned a {type(made).__name__}; return a ssmspec_ref.contract.Adapter")
    check_form(made)
    return made


def check_form(made: Adapter) -> None:
    """Raise MalformedAdapter where a part is of another type than the contract's, or where nothing is declared."""
    _check(made, "subjects", made.subjects, tuple)
    _check(made, "decodings", made.decodings, tuple)
    for subject in made.subjects:
        _check(made, "a subject", subject, Subject)
        _check(made, f"the capabilities of {subject.name}", subject.capabilities, Mapping)
        for operation, capability in subject.capabilities.items():
            where = f"{subject.name}, {operation}"
            _check(made, where, capability, Capability)
            _check(made, f"{where}, contract", capability.contract, NumericContract)
            _check(made, f"{where}, limits", capability.limits, Limits)
            _check(made, f"{where}, run", capability.run, Callable)
    for decoding in made.decodings:
        _check(made, "a decoding", decoding, Decoding)
    if not made.subjects and not made.decodings:
        raise MalformedAdapter(f"{made.name} declares nothing; give it a Subject with its operations, or a Decoding")


def _check(made: Adapter, where: str, came: Any, kind: Any) -> None:
    if not isinstance(came, kind):
        raise MalformedAdapter(f"{made.name}: {where} came as {type(came).__name__}; give a {kind.__name__}")


def _installing(package: str) -> str:
    """How to have a package."""
    if package in EXTRAS:
        return f"pip install 'ssmspec[{EXTRAS[package]}]'"
    if package in WHEELS:
        return f"python -m conformance.adapters.unpack {WHEELS[package]} --into FOLDER, and put FOLDER on PYTHONPATH"
    return f"pip install {DISTRIBUTIONS.get(package, package)}"
