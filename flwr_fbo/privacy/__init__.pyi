"""The public names of `flwr_fbo.privacy`; its `__init__.py` reads this list."""

from .weights import WeightSchedule as WeightSchedule
