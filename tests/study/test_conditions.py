"""Which totals a ledger's charges have, and what each is of."""

from typing import Any

import pytest

from flwr_fbo.privacy.guarantee import CLIENT, EXAMPLE, ONE_EXAMPLE_LESS, PrivacyUnit
from flwr_fbo.study import conditions
from flwr_fbo.study.conditions import total_guarantee, totals_of


@pytest.fixture(autouse=True)
def _units(monkeypatch: pytest.MonkeyPatch) -> None:
    """A charge's kind is its unit here."""
    monkeypatch.setattr(conditions, "unit_of", lambda charge: charge["unit"])


def _charge(unit: PrivacyUnit | None) -> dict[str, Any]:
    return {"unit": unit, "study_kind": "tuning"}


@pytest.mark.parametrize(
    ("units", "totals"),
    [
        ([], (CLIENT,)),
        ([CLIENT, None], (CLIENT,)),
        ([EXAMPLE], (EXAMPLE,)),
        ([ONE_EXAMPLE_LESS], (ONE_EXAMPLE_LESS,)),
        ([ONE_EXAMPLE_LESS, EXAMPLE], (ONE_EXAMPLE_LESS,)),
        ([CLIENT, ONE_EXAMPLE_LESS], (CLIENT, ONE_EXAMPLE_LESS)),
        ([None, EXAMPLE], (CLIENT, EXAMPLE)),
    ],
)
def test_a_client_has_no_total_of_what_protects_examples(
    units: list[PrivacyUnit | None], totals: tuple[PrivacyUnit, ...]
) -> None:
    charges = [_charge(unit) for unit in units]
    assert totals_of(charges) == totals
    for total in totals:
        assert total_guarantee(charges, total).unit == total
