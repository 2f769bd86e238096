"""Base of the choosers: the comparison of a rung's trials."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.spending_ledger import Promise
from flwr_fbo.secure import SecureSums
from flwr_fbo.tuner.ballots.ballots import Ballots
from flwr_fbo.tuner.ballots.example_ballots import ExampleBallots
from flwr_fbo.tuner.choosers.tuner_clients import TunerClients
from flwr_fbo.tuner.decisions.rung_evidence import check_evidence
from flwr_fbo.tuner.message_headers import BallotHeader
from flwr_fbo.tuner.records.trials_record import TrialsRecord
from flwr_fbo.tuner.trials.trial_thread import TrialThread

_log = logging.getLogger("flwr.fbo")


@dataclass(frozen=True)
class Comparison:
    """Trials of a rung that are to be compared.

    Attributes
    ----------
    asked : BallotHeader
        Which trials are compared, and what clients are asked about them.
    trials : sequence of TrialThread
        The same trials; empty if an earlier run has trained them.
    clients : TunerClients
        Gives ballots.
    record : TrialsRecord
        Keeps what may not be lost before the rung is decided.
    """

    asked: BallotHeader
    trials: Sequence[TrialThread]
    clients: TunerClients
    record: TrialsRecord


class Chooser(ABC):
    """Compares the trials of a rung: one score each, and what that costs is charged.

    Which trials go on is decided by these scores, see `survivors_of`. A chooser of
    another kind is a class with `compare`, and what differs of the rest.

    Parameters
    ----------
    num_clients : int
        N >= 1, the most clients that take part.

    Attributes
    ----------
    trust : str
        Words for what the server learns of a client's scores.
    ballots : Ballots or None
        What clients say of trials; None where they send no ballots.
    clients_score : bool
        Whether clients score the trials: each evaluates all of them at a rung's end.
    adds_noise : bool
        Whether what is released of the clients' scores has noise. Then their metrics
        stay at the clients while trials are compared.
    """

    trust: str
    ballots: Ballots | None = None
    clients_score: ClassVar[bool] = True
    adds_noise: ClassVar[bool] = False

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients

    def say(self) -> None:
        """Log what the server learns, and what is not private about it."""
        _log.info(self.trust)

    def say_of(self, row: LedgerRow, sizes: tuple[int, ...]) -> None:
        """Log what a decided rung shows, of a tuner with rungs of these sizes.

        Raises
        ------
        AggregationError
            If it shows that there is nothing to choose by: see `check_evidence`.
        """
        check_evidence(row, self.num_clients)

    def identity(self) -> dict[str, Any]:
        """Return what may not change while a tuner goes on, as JSON values."""
        return {}

    def promise(self, first_rung: int) -> Promise:
        """Return what the rungs from one on, from 0, release of a client."""
        return Promise()

    @property
    def examples(self) -> ExampleBallots | None:
        """How clients sum over their examples; None where they do not."""
        return self.ballots if isinstance(self.ballots, ExampleBallots) else None

    def sums(self, num_trials: int) -> SecureSums | None:
        """Return how clients sum their ballots on K trials; None: they do not."""
        return None

    def server_score(self, measured: Any) -> float | None:
        """Return the score in what the server has measured of a trial.

        Or in what its `main` returned. None: there is none, or nobody needs it.
        """
        return None

    def open_ballot(
        self, clients: TunerClients, record: TrialsRecord
    ) -> BallotHeader | None:
        """Return what a comparison that an earlier run has begun must be about."""
        return None

    @abstractmethod
    def compare(self, rung: Comparison) -> LedgerRow:
        """Return one score per trial, larger is better: all that a rung releases."""
