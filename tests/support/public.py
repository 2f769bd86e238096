"""Every public name of the package."""

from importlib import import_module
from typing import Any

MODULES = (
    "flwr_fbo",
    "flwr_fbo.bandits",
    "flwr_fbo.integrations",
    "flwr_fbo.privacy",
    "flwr_fbo.secure",
    "flwr_fbo.tuning",
)


def public_names() -> dict[str, Any]:
    """Return every public name, with its module, and what it names."""
    return {
        f"{module}.{name}": getattr(import_module(module), name)
        for module in MODULES
        for name in dir(import_module(module))
        if name != "__version__"
    }
