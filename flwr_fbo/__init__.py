"""Federated black-box optimisation under differential privacy, for Flower.

Here is what most users need. The rest stands by what one does with it, in
`flwr_fbo.tuning`, `flwr_fbo.bandits`, `flwr_fbo.privacy`, `flwr_fbo.secure` and
`flwr_fbo.integrations`.
"""

import logging

from flwr_fbo._common.public import public_names
from flwr_fbo._common.text import made_printable

logging.getLogger("flwr.fbo").addFilter(made_printable)

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
