"""What a simulation tells of how far it is."""

from flwr_fbo.lab.simulation.progress import telling, told


def test_loops_within_loops_tell_shares_of_the_whole() -> None:
    shares: list[float] = []
    with told(shares.append):
        for _ in telling(range(2)):
            for _ in telling("abcd"):
                pass
    assert shares == [0.125, 0.25, 0.375, 0.5, 0.5, 0.625, 0.75, 0.875, 1.0, 1.0]


def test_nobody_need_listen() -> None:
    assert list(telling("ab")) == ["a", "b"]
