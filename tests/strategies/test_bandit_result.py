"""The result of a bandit's study as a data frame."""

import pytest

from flwr_fbo.bandits import BanditResult
from flwr_fbo.study.callbacks import Round


def test_without_epsilon_the_column_is_of_numbers() -> None:
    pytest.importorskip("pandas", reason="needs the extra pandas")
    rounds = [Round(1, 4, 0, 0, 0), Round(2, 3, 1, 0, 0)]
    frame = BanditResult(rounds=rounds).to_dataframe()
    assert frame["epsilon"].dtype == float
    assert frame["epsilon"].isna().all()
    assert frame["failed"].tolist() == [0, 1]
