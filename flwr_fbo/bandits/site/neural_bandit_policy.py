"""The policy by which a site plays its bandit with a network."""

from __future__ import annotations

from pathlib import Path

from flwr_fbo.bandits.fed_go_ucb.settings import FedGOUCBSettings
from flwr_fbo.bandits.kind import NEURAL_SITE
from flwr_fbo.bandits.site.bandit_policy import BanditPolicy, opened
from flwr_fbo.bandits.site.policy_summary import NeuralPolicySummary
from flwr_fbo.bandits.site.recorded_neural_agent import RecordedNeuralAgent
from flwr_fbo.journal.journal import Journal
from flwr_fbo.models.network import RewardModel


class NeuralBanditPolicy(BanditPolicy[RecordedNeuralAgent]):
    """Chooses actions at one site of `FedGOUCB`, and learns from their rewards.

    All is as with `LinearBanditPolicy`, but actions are points, shape (K, D), called
    "0", "1", ... In phase I, until the server has fitted the network, actions are drawn
    at random; then as the study's ``exploration`` says. The propensity of a choice is
    the share of 64 draws of the parameters that it is best for.

    Examples
    --------
    >>> import tempfile
    >>> from flwr_fbo import FedGOUCB, InProcessGrid, Limits
    >>> from flwr_fbo.bandits import (
    ...     FedGOUCBSettings,
    ...     Network,
    ...     NeuralBanditPolicy,
    ...     neural_bandit_app,
    ... )
    >>> folders = [tempfile.mkdtemp() for _ in range(2)]
    >>> configs = [{"agent-id": i, "fbo-folder": f} for i, f in enumerate(folders)]
    >>> app = neural_bandit_app(limits=Limits(max_epsilon_per_example=float("inf")))
    >>> grid = InProcessGrid(app, num_nodes=2, node_configs=configs)
    >>> settings = FedGOUCBSettings(num_exploration=0)  # phase II only
    >>> strategy = FedGOUCB(
    ...     settings, Network(1, width=4), num_agents=2, num_evaluations=2, interval=0
    ... )
    >>> result = strategy.start(grid)
    >>> policy = NeuralBanditPolicy.open(folders[0])
    >>> choice = policy.choose([[0.0], [0.5], [1.0]], floors={"0": 0.2})
    >>> policy.reward(choice.ticket, 0.7)  # when it is known, from any process
    >>> policy.summary().phase
    2

    Parameters
    ----------
    path : Path
        Path of the journal: `open` finds it.
    patience : float
        Seconds, >= 0, to wait while another process has the journal.
    model : RewardModel, optional
        The site's own reward model, where the study has no network.
    """

    def __init__(
        self, path: Path, patience: float, model: RewardModel | None = None
    ) -> None:
        super().__init__(path, patience)
        self._model = model

    @classmethod
    def open(
        cls,
        folder: str | Path,
        patience: float = 30.0,
        model: RewardModel | None = None,
    ) -> NeuralBanditPolicy:
        """Open the policy of the study that this site has enrolled in last.

        Parameters
        ----------
        folder : str or Path
            The folder of the site's ``neural_bandit_app``.
        patience : float
            Seconds, >= 0, to wait for the journal: until the site has enrolled, and
            later in each call, while another process has it.
        model : RewardModel, optional
            The site's own reward model, where the study has no network.

        Raises
        ------
        ValueError
            If an argument is not allowed.
        StudyMismatchError
            If the study needs another model.
        JournalError
            If there is no journal, or the server did not enrol the site.
        """

        def make(path: Path, seconds: float) -> NeuralBanditPolicy:
            return cls(path, seconds, model)

        return opened(make, folder, NEURAL_SITE, patience)

    def _recorded(self, journal: Journal) -> RecordedNeuralAgent:
        return RecordedNeuralAgent(journal, self._model)

    @property
    def settings(self) -> FedGOUCBSettings:
        """Settings of the study."""
        with self._held() as bandit:
            return bandit.study.settings

    def summary(self) -> NeuralPolicySummary:
        """Return what the site has learned, and what it has spent.

        ``print(policy.summary())`` shows it as a text; see `NeuralPolicySummary`.
        """
        with self._held() as bandit:
            return bandit.summary()
