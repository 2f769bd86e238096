"""The public names of `flwr_fbo.privacy`; its `__init__.py` reads this list."""

from .training import DPSGD as DPSGD
from .training import TrainingPlan as TrainingPlan
from .training import plan_training as plan_training
from .weights import WeightSchedule as WeightSchedule
