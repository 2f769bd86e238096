"""The public names of `flwr_fbo.integrations`; its `__init__.py` reads this list."""

from ..study.callbacks import Callback as Callback
from .mlflow_callback import MlflowCallback as MlflowCallback
from .optuna_sampler import FederatedSampler as FederatedSampler
from .prometheus_callback import PrometheusCallback as PrometheusCallback
from .tensorboard_callback import TensorBoardCallback as TensorBoardCallback
