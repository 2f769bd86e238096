"""A support vector machine on digits."""

from flwr_fbo.lab.tasks.digits import DigitsTask


def test_the_svm_learns_the_digits() -> None:
    accuracy = DigitsTask().objective(0, 2, 0)
    assert accuracy({"C": 10.0, "gamma": 1e-3}) > 0.9
    assert accuracy({"C": 1e-3, "gamma": 10.0}) < 0.5
