"""The sites' ledgers as a tuner knows them: who is not asked for ballots."""

import pytest

from flwr_fbo.privacy.spending_ledger import Promise
from flwr_fbo.tuner.message_headers import ReplyHeader
from flwr_fbo.tuner.records.site_ledgers import SiteLedgers


def heard(ledgers: SiteLedgers, node: int, charges: int, head: int, agent: int) -> bool:
    """Have a node answer, which is the only one there; return whether that counts."""
    reply = ReplyHeader(charges=charges, head=head, agent=agent)
    return ledgers.hear(node, reply, "run", Promise(), [1], [node])


@pytest.mark.parametrize(("agent", "comes_back_as"), [(3, 1001), (3, 2002), (-1, 1001)])
def test_a_site_that_lacks_charges_does_not_vote(
    agent: int, comes_back_as: int
) -> None:
    """It is known by its agent-id, under another node id too; without one by that."""
    ledgers = SiteLedgers()
    assert heard(ledgers, 1001, 2, 77, agent)
    assert not heard(ledgers, comes_back_as, 0, 5, agent)
    assert not ledgers.may_vote(comes_back_as)
    assert heard(ledgers, comes_back_as, 2, 77, agent)  # once it is recovered
    assert ledgers.may_vote(comes_back_as)
    assert not heard(ledgers, comes_back_as, 2, 78, agent)  # a clone that went on
