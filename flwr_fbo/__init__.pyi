"""The public names: the one list of them, which `flwr_fbo/__init__.py` reads."""

from ._version import __version__ as __version__
from .agents.durable.decision import Decision as Decision
from .agents.durable.linear_bandit_policy import (
    LinearBanditPolicy as LinearBanditPolicy,
)
from .agents.durable.offer import Choice as Choice
from .agents.durable.policy_summary import PolicySummary as PolicySummary
from .agents.durable.recorded_decisions import LateRewardError as LateRewardError
from .agents.tuning.trial import Objective as Objective
from .agents.tuning.trial import Trial as Trial
from .clients.app_builders import add_tuning as add_tuning
from .clients.app_builders import tuning_app as tuning_app
from .clients.app_builders import with_tuning as with_tuning
from .clients.limits import Limits as Limits
from .clients.limits import SumLimits as SumLimits
from .clients.linear_bandit_client import LinearBanditClient as LinearBanditClient
from .clients.linear_bandit_client import linear_bandit_app as linear_bandit_app
from .clients.neural_bandit_client import NeuralBanditClient as NeuralBanditClient
from .clients.neural_bandit_client import neural_bandit_app as neural_bandit_app
from .clients.tuning_client import TuningClient as TuningClient
from .clients.tuning_journals import best_params as best_params
from .grid import InProcessGrid as InProcessGrid
from .integrations.mlflow_callback import MlflowCallback as MlflowCallback
from .integrations.optuna_sampler import FederatedSampler as FederatedSampler
from .integrations.tensorboard_callback import (
    TensorBoardCallback as TensorBoardCallback,
)
from .models.network import Network as Network
from .models.network import TorchModel as TorchModel
from .off_policy.estimators import PolicyValue as PolicyValue
from .off_policy.estimators import doubly_robust as doubly_robust
from .off_policy.estimators import ips as ips
from .off_policy.estimators import snips as snips
from .off_policy.policies import evaluate_policy as evaluate_policy
from .privacy.continual_settings import ContinualSettings as ContinualSettings
from .privacy.neural_privacy import NeuralPrivacy as NeuralPrivacy
from .privacy.weights import WeightSchedule as WeightSchedule
from .protocol.arm_table import ArmTable as ArmTable
from .protocol.callbacks import Callback as Callback
from .protocol.exploration import EllipsoidSampling as EllipsoidSampling
from .protocol.exploration import InverseGapWeighting as InverseGapWeighting
from .protocol.exploration import Optimism as Optimism
from .protocol.feature_encoder import FeatureEncoder as FeatureEncoder
from .protocol.feature_fields import Category as Category
from .protocol.feature_fields import Number as Number
from .protocol.fed_vote_settings import VotingSettings as VotingSettings
from .protocol.fed_warm_start_settings import WarmStartSettings as WarmStartSettings
from .protocol.knowledge import Knowledge as Knowledge
from .protocol.linear_ucb_settings import LinearUCBSettings as LinearUCBSettings
from .protocol.neural_ucb_settings import NeuralUCBSettings as NeuralUCBSettings
from .protocol.peer_graph import PeerGraph as PeerGraph
from .protocol.reward_timeout import RewardTimeout as RewardTimeout
from .protocol.site_deviation import SiteDeviation as SiteDeviation
from .protocol.tuning_settings import FTSSettings as FTSSettings
from .protocol.tuning_settings import ThompsonSettings as ThompsonSettings
from .space.search_space import SearchSpace as SearchSpace
from .strategies.decentralized_fed_ucb import DecentralizedFedUCB as DecentralizedFedUCB
from .strategies.dp_fts_de import DPFTSDE as DPFTSDE
from .strategies.fed_go_ucb import FedGOUCB as FedGOUCB
from .strategies.fed_ucb import FedUCB as FedUCB
from .strategies.fed_vote import FedVote as FedVote
from .strategies.fed_warm_start import FedWarmStart as FedWarmStart
from .strategies.fts import FTS as FTS
from .strategies.options import Durability as Durability
from .strategies.options import Privacy as Privacy
from .strategies.options import Seeds as Seeds
from .strategies.result import BanditResult as BanditResult
from .strategies.result import TuningResult as TuningResult
from .strategies.secure_aggregation import SecureAggregation as SecureAggregation
from .tuner.choice import PrivateChoice as PrivateChoice
from .tuner.client_mod import tuner_mod as tuner_mod
from .tuner.federation_result import FederationResult as FederationResult
from .tuner.federation_tuner import FederationTuner as FederationTuner
from .tuner.schedule import Halving as Halving
