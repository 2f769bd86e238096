"""The command ``flwr-fbo claims``."""

from tests.support.command import invoke


def test_claims_of_each_experiment_that_is_named_have_rows() -> None:
    names = ("fts/fig3a", "fts/fig4")
    alone = [invoke("claims", name).stdout for name in names]
    assert invoke("claims", *names).stdout == "\n".join(alone)
    assert all("| claim (section) | what came out | verdict |" in one for one in alone)
