"""The public names of `flwr_fbo.tuning`; its `__init__.py` reads this list."""

from ..clients.tuning_client import TuningClient as TuningClient
from ..space.search_space import SearchSpace as SearchSpace
from ..strategies.tuning_result import TuningResult as TuningResult
from ..tuner.federation_result import FederationResult as FederationResult
from ..tuner.records.portfolio_of_studies import (
    portfolio_of_studies as portfolio_of_studies,
)
from ..tuner.trial_context import FederationTrial as FederationTrial
from ..tuner.trial_context import current_trial as current_trial
from ..tuner.trials.trial_grid import server_score as server_score
from .dp_fts_de.settings import DPFTSDESettings as DPFTSDESettings
from .fed_vote.settings import FedVoteSettings as FedVoteSettings
from .fed_warm_start.knowledge import Knowledge as Knowledge
from .fed_warm_start.settings import FedWarmStartSettings as FedWarmStartSettings
from .fts.settings import FTSSettings as FTSSettings
from .search.portfolios import Portfolio as Portfolio
from .search.study_portfolio import PortfolioSource as PortfolioSource
from .search.study_portfolio import StudyPortfolio as StudyPortfolio
from .search.trial import Objective as Objective
from .search.trial import Trial as Trial
