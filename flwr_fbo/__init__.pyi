"""The public names: the one list of them, which `flwr_fbo/__init__.py` reads."""

from ._common.version import __version__ as __version__
from .bandits.fed_go_ucb.settings import FedGOUCBSettings as FedGOUCBSettings
from .bandits.fed_go_ucb.settings import NeuralPrivacy as NeuralPrivacy
from .bandits.linear.arm_table import ArmTable as ArmTable
from .bandits.linear.exploration import EllipsoidSampling as EllipsoidSampling
from .bandits.linear.exploration import (
    InverseGapWeighting as InverseGapWeighting,
)
from .bandits.linear.exploration import Optimism as Optimism
from .bandits.linear.feature_encoder import FeatureEncoder as FeatureEncoder
from .bandits.linear.feature_fields import Category as Category
from .bandits.linear.feature_fields import Number as Number
from .bandits.linear.peer_graph import PeerGraph as PeerGraph
from .bandits.linear.settings import LinearUCBSettings as LinearUCBSettings
from .bandits.linear.settings import RewardTimeout as RewardTimeout
from .bandits.off_policy.estimators import PolicyValue as PolicyValue
from .bandits.off_policy.estimators import doubly_robust as doubly_robust
from .bandits.off_policy.estimators import ips as ips
from .bandits.off_policy.estimators import snips as snips
from .bandits.off_policy.policies import evaluate_policy as evaluate_policy
from .bandits.site.decision import Choice as Choice
from .bandits.site.decision import Decision as Decision
from .bandits.site.linear_bandit_policy import (
    LinearBanditPolicy as LinearBanditPolicy,
)
from .bandits.site.linear_bandit_site import linear_bandit_app as linear_bandit_app
from .bandits.site.neural_bandit_site import neural_bandit_app as neural_bandit_app
from .bandits.site.policy_summary import PolicySummary as PolicySummary
from .bandits.site.reward_clock import LateRewardError as LateRewardError
from .clients.app_builders import add_tuning as add_tuning
from .clients.app_builders import tuning_app as tuning_app
from .clients.app_builders import with_tuning as with_tuning
from .clients.linear_bandit_client import LinearBanditClient as LinearBanditClient
from .clients.neural_bandit_client import NeuralBanditClient as NeuralBanditClient
from .clients.tuning_client import TuningClient as TuningClient
from .grid import InProcessGrid as InProcessGrid
from .integrations.mlflow_callback import MlflowCallback as MlflowCallback
from .integrations.optuna_sampler import FederatedSampler as FederatedSampler
from .integrations.prometheus_callback import PrometheusCallback as PrometheusCallback
from .integrations.tensorboard_callback import (
    TensorBoardCallback as TensorBoardCallback,
)
from .models.network import Network as Network
from .models.network import TorchModel as TorchModel
from .privacy.continual_settings import ContinualSettings as ContinualSettings
from .privacy.weights import WeightSchedule as WeightSchedule
from .secure_sum import SecureAggregation as SecureAggregation
from .site.limits import Limits as Limits
from .space.search_space import SearchSpace as SearchSpace
from .strategies.bandit_result import BanditResult as BanditResult
from .strategies.decentralized_fed_ucb import DecentralizedFedUCB as DecentralizedFedUCB
from .strategies.dp_fts_de import DPFTSDE as DPFTSDE
from .strategies.fed_go_ucb import FedGOUCB as FedGOUCB
from .strategies.fed_ucb import FedUCB as FedUCB
from .strategies.fed_vote import FedVote as FedVote
from .strategies.fed_warm_start import FedWarmStart as FedWarmStart
from .strategies.fts import FTS as FTS
from .strategies.host import Host as Host
from .strategies.options import Privacy as Privacy
from .strategies.options import Seeds as Seeds
from .strategies.tuning_result import TuningResult as TuningResult
from .study.callbacks import Callback as Callback
from .tuner.federation_result import FederationResult as FederationResult
from .tuner.federation_tuner import FederationTuner as FederationTuner
from .tuner.private_choice import PrivateChoice as PrivateChoice
from .tuner.records.portfolio_of_studies import (
    portfolio_of_studies as portfolio_of_studies,
)
from .tuner.schedules.halving import Halving as Halving
from .tuner.schedules.one_training import OneTraining as OneTraining
from .tuner.site.client_mod import tuner_mod as tuner_mod
from .tuner.trial_context import FederationTrial as FederationTrial
from .tuner.trial_context import current_trial as current_trial
from .tuner.trials.trial_grid import server_score as server_score
from .tuning.dp_fts_de.settings import DPFTSDESettings as DPFTSDESettings
from .tuning.fed_vote.settings import FedVoteSettings as FedVoteSettings
from .tuning.fed_warm_start.knowledge import Knowledge as Knowledge
from .tuning.fed_warm_start.settings import (
    FedWarmStartSettings as FedWarmStartSettings,
)
from .tuning.fts.settings import FTSSettings as FTSSettings
from .tuning.search.portfolios import Portfolio as Portfolio
from .tuning.search.study_portfolio import PortfolioSource as PortfolioSource
from .tuning.search.study_portfolio import StudyPortfolio as StudyPortfolio
from .tuning.search.trial import Objective as Objective
from .tuning.search.trial import Trial as Trial
from .tuning.site.tuning_journals import best_params as best_params
