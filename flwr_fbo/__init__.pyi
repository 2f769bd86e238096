"""The public names most users need; `flwr_fbo/__init__.py` reads this list."""

from ._common.version import __version__ as __version__
from .bandits.site.linear_bandit_policy import LinearBanditPolicy as LinearBanditPolicy
from .bandits.site.linear_bandit_site import linear_bandit_app as linear_bandit_app
from .clients.app_builders import add_tuning as add_tuning
from .clients.app_builders import tuning_app as tuning_app
from .clients.app_builders import with_tuning as with_tuning
from .grid import InProcessGrid as InProcessGrid
from .site.limits import Limits as Limits
from .site.training import charge_training as charge_training
from .strategies.decentralized_fed_ucb import DecentralizedFedUCB as DecentralizedFedUCB
from .strategies.dp_fts_de import DPFTSDE as DPFTSDE
from .strategies.fed_go_ucb import FedGOUCB as FedGOUCB
from .strategies.fed_ucb import FedUCB as FedUCB
from .strategies.fed_vote import FedVote as FedVote
from .strategies.fed_warm_start import FedWarmStart as FedWarmStart
from .strategies.fts import FTS as FTS
from .strategies.host import Host as Host
from .strategies.privacy_options import Privacy as Privacy
from .strategies.seeds import Seeds as Seeds
from .tuner.federation_tuner import FederationTuner as FederationTuner
from .tuner.private_choice import PrivateChoice as PrivateChoice
from .tuner.schedules.halving import Halving as Halving
from .tuner.schedules.race import OneTraining as OneTraining
from .tuner.site.client_mod import tuner_mod as tuner_mod
from .tuning.site.tuning_journals import best_params as best_params
