"""What a study gives back: Flower's result, and what a study adds to it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from flwr.serverapp.strategy import Result

from flwr_fbo._common.conversion import frame_of
from flwr_fbo._common.text import counted
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.study.callbacks import Round


@dataclass(repr=False)
class StudyResult(Result):
    """The result of a study.

    Attributes
    ----------
    privacy_spent : PrivacySpent or None
        Epsilon at delta of all releases; None where the method releases nothing.
    rounds : list of Round
        How the agents answered in each round.
    """

    privacy_spent: PrivacySpent | None = None
    rounds: list[Round] = field(default_factory=list)

    @property
    def found(self) -> dict[str, Any]:
        """What came out, by what it is: for trackers. Empty unless it is settings."""
        return {}

    def to_dataframe(self) -> Any:
        """Return the rounds as a ``pandas.DataFrame``: one row a round.

        Its columns are the attributes of `Round`. Epsilon is NaN where there is none.

        Raises
        ------
        ImportError
            If pandas is not installed; the message names the extra.
        """
        columns = [column.name for column in fields(Round)]
        frame = frame_of([asdict(finished) for finished in self.rounds], columns)
        return frame.astype({"epsilon": float})

    def __repr__(self) -> str:
        """Say what came out; Flower's own records stay in their attributes."""
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        answers = sum(finished.answered for finished in self.rounds)
        lines = [f"{len(self.rounds)} rounds, {answers} answers of agents"]
        if self.privacy_spent is not None:
            spent = self.privacy_spent
            releases = counted(spent.num_releases, "release")
            lines.append(f"Privacy spent in {releases}: {spent.text('.3f')}")
        return lines
