"""Federated black-box optimisation under differential privacy, for Flower.

The public names are listed in ``__init__.pyi``. They are resolved on first use, so that
``import flwr_fbo`` loads neither Flower nor any of the heavy optional libraries.
"""

import logging

import lazy_loader

from flwr_fbo._common.text import made_printable

logging.getLogger("flwr.fbo").addFilter(made_printable)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
