"""Prepare the process before a modeling file of transformers is imported.

Each modeling file binds fla, mamba_ssm and causal_conv1d at import, without checking for a device; on a machine without one
the layers then fail. The adapter tests the PyTorch path, so it hides the three. `reroute` needs a separate process: it turns
every hard-coded cast to float32 into one to float64, so that the layers compute in float64 throughout.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

KERNEL_PACKAGES = ("fla", "mamba_ssm", "causal_conv1d")


def modeling(family: str) -> Any:
    """The modeling module of a family, imported with the optional kernel packages hidden."""
    for name in KERNEL_PACKAGES:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    with quiet():
        return import_module(f"transformers.models.{family}.modeling_{family}")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence deprecation warnings inside transformers and torch, and notes that no kernel package is installed."""
    logging = import_module("transformers.utils.logging")
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            for category in (DeprecationWarning, FutureWarning):
                warnings.filterwarnings("ignore", category=category)
            yield
    finally:
        logging.set_verbosity(level)


def reroute() -> None:
    """Make float32 mean float64 in this process. Call before any layer is built; it cannot be undone.

    transformers casts to float32 inside every layer, whatever the dtype of the model, so a float64 model still has errors of
    1e-6. After this call its errors are those of float64.
    """
    import torch

    torch.Tensor.float = lambda self, *args, **kwargs: self.to(torch.float64)  # type: ignore[method-assign]
    torch.float32 = torch.float = torch.float64
    torch.set_default_dtype(torch.float64)
