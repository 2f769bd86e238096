"""What a server can learn from questions that cost it nothing."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from typer.testing import CliRunner

from flwr_fbo import Limits
from flwr_fbo._common.errors import RefusedError, refused
from flwr_fbo.cli import app as command
from flwr_fbo.privacy.gaussian import gaussian_mu
from flwr_fbo.privacy.spending_ledger import Charge, Promise, SpendingLedger
from flwr_fbo.site import questions
from flwr_fbo.site.questions import Questions, share_of
from flwr_fbo.study.codec import Config
from tests.support.ledgers import ledger_charges
from tests.support.site_budget import FOLDERS, Node, asked_of, site_of, study_of

LIMITS = Limits(max_epsilon_per_client=3.0, max_delta=1e-3)
MANY = Limits(max_epsilon_per_client=3.0, max_delta=1e-3, max_questions=1000)


def promise(epsilon: float) -> Promise:
    return Promise((Charge(1 / gaussian_mu(epsilon, 1e-3)),), private=True)


class Book:
    """A book, and what is left of a limit."""

    def __init__(self, left: float, most: int = 1000) -> None:
        self.left, self.most, self.book = left, most, Questions()

    def takes(self, share: float) -> bool:
        too_much = refused("too much", public="its limits")
        refusal = too_much if share > self.left else None
        self.book, refusal = self.book.ask(share, self.most, refusal)
        assert refusal is None or refusal.public == (
            "This site takes no part: its limits."
        )
        return refusal is None


@pytest.mark.parametrize("left", [0.011, 0.3, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("factor", [1.01, 1.2, 1.49])
def test_no_sequence_of_questions_comes_nearer_than_a_factor_of_two(
    left: float, factor: float
) -> None:
    """By bisection, from below, or from above in small steps."""

    def bisected() -> tuple[float, float]:
        low, high = 1e-3, 1.0
        while high / low > factor:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if takes(middle) else (low, middle)
        return low, high

    def stepped(start: float, step: float) -> tuple[float, float]:
        share = start
        while takes(share) == (step > 1) and 1e-3 < share < 1:
            share *= step
        return share, share

    takes = Book(left).takes
    for ask in (
        bisected,
        lambda: stepped(2e-3, factor),
        lambda: stepped(1.0, 1 / factor),
    ):
        one = Book(left)
        takes = one.takes
        ask()
        assert one.book.refused >= one.book.taken * questions._COARSE


def test_a_study_that_spends_all_of_a_limit_is_taken() -> None:
    assert Book(1.0).takes(1.0)
    again = Book(1.0)
    assert [again.takes(share) for share in (1.0, 1.0001, 1.0, 0.2)] == [
        True,
        False,
        True,
        True,
    ]


def test_so_many_are_answered_a_day_and_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def on(day: int) -> None:
        monkeypatch.setattr(time, "strftime", lambda *_: f"2026-01-{day:02}")

    one, asked = Book(1.0, most=2), 0
    for day in range(1, 30):
        on(day)
        for _ in range(5):
            asked += one.takes(0.1 / (1 + asked))
    assert asked == 20
    assert one.takes(0.1), "an old question is free"


def test_shares_are_of_the_nearest_limit() -> None:
    one = promise(1.5)
    assert share_of(one, [LIMITS]) == pytest.approx(0.5, rel=1e-6)
    assert share_of(one, [LIMITS, Limits(max_releases=1)]) == 1.0
    assert share_of(Promise((Charge(0.0),)), [LIMITS]) == math.inf
    assert share_of(one, []) == 0.0


@FOLDERS
def test_a_site_is_not_read_by_bisection(tmp_path: Path, in_folder: bool) -> None:
    """What another study has spent, before and after: see also `limit_oracle`."""

    def smallest(node: Node) -> float:
        low, high = 0.1, 1e5
        for _ in range(40):
            z = math.sqrt(low * high)
            study = study_of(
                (Charge(z),), study_id=f"z-{z.hex()[4:]}".replace("+", "-")
            )
            try:
                node.ask(site_of(MANY), study.enrolment())
                high = z
            except RefusedError:
                low = z
        return high

    found = set()
    for k, spent in enumerate(np.linspace(1.3, 2.6, 12)):
        node = Node(tmp_path / str(k) if in_folder else None)
        study = study_of((Charge(spent),), study_id="another")
        node.ask(site_of(MANY), asked_of(study, 0, 1))
        found.add(smallest(node))
    # These have spent epsilon 1.0 to 2.3 of 3.
    assert len(found) <= 3


@FOLDERS
def test_a_study_that_is_played_is_no_question(tmp_path: Path, in_folder: bool) -> None:
    few = Limits(max_epsilon_per_client=30.0, max_delta=1e-3, max_questions=1)
    node = Node(tmp_path if in_folder else None)
    for k in range(4):
        study = study_of((Charge(4.0 + k),), study_id=f"study-{k}")
        node.ask(site_of(few), study.enrolment())
        assert node.ask(site_of(few), asked_of(study, 0, 1)).arrays
    node.ask(site_of(few), study_of((Charge(50.0),), study_id="a").enrolment())
    with pytest.raises(RefusedError, match="asked about 1 studies today") as error:
        node.ask(site_of(few), study_of((Charge(400.0),), study_id="b").enrolment())
    assert error.value.public == "This site takes no part: its limits."


def test_an_operator_sees_and_forgets_them(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(command, ["ledger", "questions", *arguments])
        return result.output or result.stderr

    few = Limits(max_epsilon_per_client=30.0, max_delta=1e-3, max_questions=1)
    node = Node(tmp_path)
    assert "no ledger" in run(str(tmp_path))
    node.ask(site_of(few), study_of((Charge(50.0),), study_id="a").enrolment())
    other = study_of((Charge(400.0),), study_id="b").enrolment()
    with pytest.raises(RefusedError):
        node.ask(site_of(few), other)
    assert run(str(tmp_path)) == "1 question about a study that was not played.\n"
    assert "1 question" in (said := run(str(tmp_path), "--forget"))
    assert "forgotten" in said
    node.ask(site_of(few), other)
    assert "1 question" in run(str(tmp_path))


def test_what_exceeds_a_limit_by_itself_is_not_in_the_book() -> None:
    """It tells nothing of what is left, and would refuse all of half the limit."""
    book = Book(0.9)
    assert not book.takes(1.01)
    assert not book.takes(math.inf)
    assert book.book == Questions()
    assert book.takes(0.8)


def test_other_limits_begin_anew(tmp_path: Path) -> None:
    node = Node(tmp_path)
    study = study_of((Charge(1 / gaussian_mu(4.0, 1e-3)),))
    with pytest.raises(RefusedError):
        node.ask(site_of(LIMITS), study.enrolment())
    node.ask(
        site_of(Limits(max_epsilon_per_client=4.5, max_delta=1e-3)), study.enrolment()
    )


def test_owners_of_one_folder_have_books_of_their_own(tmp_path: Path) -> None:
    """As simulated sites do: what one has spent must not refuse another."""
    study = study_of((Charge(1 / gaussian_mu(2.5, 1e-3)),), study_id="two")

    def ask(slot: int, config: Config) -> None:
        run, node = {"fbo-folder": str(tmp_path)}, {"partition-id": slot}
        context = Context(1, 1, {**node}, RecordDict(), {**run})
        site_of(LIMITS).answer(context, [], config)

    ask(0, asked_of(study_of((Charge(2.0),)), 0, 1))
    with pytest.raises(RefusedError):
        ask(0, study.enrolment())
    ask(1, study.enrolment())


def test_the_book_is_in_the_ledger_and_costs_no_release(tmp_path: Path) -> None:
    Node(tmp_path).ask(site_of(LIMITS), study_of((Charge(2.0),)).enrolment())
    with SpendingLedger.held(tmp_path) as ledger:
        assert ledger_charges(ledger) == []
        assert len(Questions.of(ledger, -1).asked) == 1


def test_a_first_charge_writes_the_book_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the question in it if the charge fails: whatever a server learns counts."""
    num_asked: list[int] = []
    keep = Questions.keep

    def keep_and_count(book: Questions, ledger: SpendingLedger, owner: int) -> None:
        num_asked.append(len(book.asked))
        keep(book, ledger, owner)

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Questions, "keep", keep_and_count)
    with monkeypatch.context() as broken:
        broken.setattr(SpendingLedger, "add", full)
        with pytest.raises(OSError, match="no space left"):
            Node(tmp_path).ask(
                site_of(LIMITS), asked_of(study_of((Charge(4.0),)), 0, 1)
            )
    assert num_asked == [1]
    for folder in (tmp_path, tmp_path / "new"):
        num_asked.clear()
        Node(folder).ask(site_of(LIMITS), asked_of(study_of((Charge(4.0),)), 0, 1))
        assert num_asked == [0]
