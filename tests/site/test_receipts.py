"""A folder that is lost, older, cloned or another's is noticed, and made whole."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from typer.testing import CliRunner

from flwr_fbo._common.errors import RefusedError
from flwr_fbo._common.fields import to_json
from flwr_fbo.cli import app as command
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.spending_ledger import FILE_NAME, Charge, Promise
from flwr_fbo.site.gate import Gate
from flwr_fbo.site.proofs import check_kept
from flwr_fbo.site.receipts import (
    Mark,
    ReceiptBook,
    ServerKey,
    SignedReceipt,
    read_mark,
)
from flwr_fbo.site.site import Answer
from flwr_fbo.study.codec import RECEIPT_ENTRY
from tests.support.lost_folders import (
    GOES_ON,
    KINDS,
    SITE,
    Sites,
    anothers,
    charges_in,
    copying,
    lose,
    older,
    recover,
    said,
    server_receipts,
)
from tests.support.site_budget import Node, asked_of, site_of, study_of

KEY = "tuning", "one"
# Of each kind, a message of the harmed site after its first and its second release;
# one charge is all that a bandit has.
AFTER = {"tuning": 4, "linear": 3, "neural": 5, "tuner": 8}
EACH = pytest.mark.parametrize("kind", KINDS)
LACKS = "ledger lacks releases that the server has receipts of"


def _harmed(
    kind: str,
    folder: Path,
    harm: Callable[[Sites], None],
    then: bool = True,
    at: int = 0,
) -> Sites:
    """Play a study in which the site is harmed, and recovers at the next message."""
    sites, start = KINDS[kind](folder)
    at = at or AFTER[kind]
    sites.harms = {at: harm}
    if then:
        sites.harms[at + 1] = lambda sites: _keep(sites, recover(sites.folder))
    start(sites)
    return sites


printed: list[str] = []


def _keep(sites: Sites, text: str) -> None:
    printed[:] = [text]


@EACH
@pytest.mark.parametrize("harm", [lose, anothers])
def test_a_folder_that_is_lost_or_anothers_is_noticed_and_recovered(
    kind: str, harm: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sites = _harmed(kind, tmp_path, harm)
    at = AFTER[kind]
    [error] = [text for number, text in sites.errors if number == at]
    assert LACKS in error
    assert said(caplog.text, sites.folder)
    assert not sites.lacking()
    if kind in GOES_ON:
        assert [number for number, _ in sites.errors] == [at]
        assert "lacks earlier releases" not in caplog.text
        assert len(sites.released) > 1
        assert "1 by receipts" in printed[0] or "3 by receipts" in printed[0]
    elif harm is lose:
        assert "cannot go on at this site" in printed[0]
        assert "journal is lost" in sites.errors[-1][1]


@EACH
def test_a_site_that_is_not_recovered_stays_out(kind: str, tmp_path: Path) -> None:
    sites = _harmed(kind, tmp_path, lose, then=False)
    before = len(sites.released)
    later = range(AFTER[kind], sites.asked + 1)
    assert {number for number, _ in sites.errors} == {*later}
    assert all(LACKS in error for _, error in sites.errors)
    assert len(sites.released) == before
    assert charges_in(sites.folder) == []
    text = recover(sites.folder)
    assert "0 by receipts" not in text
    assert not sites.lacking()
    assert "0 releases added" in recover(sites.folder)


@EACH
@pytest.mark.parametrize("then", [True, False])
def test_an_older_copy_is_noticed_at_any_age(
    kind: str, then: bool, tmp_path: Path
) -> None:
    at = AFTER[kind]
    for age in range(1, at):
        folder = tmp_path / str(age)
        sites, start = KINDS[kind](folder)
        copies = copying(sites, folder / "copies", at)
        sites.harms[at] = older(age, copies)
        if then:
            sites.harms[at + 1] = lambda sites: _keep(sites, recover(sites.folder))
        before: list[int] = []
        harm = sites.harms[at]

        def noted(sites: Sites, harm: Any = harm, before: list[int] = before) -> None:
            harm(sites)
            before.append(sum(sites.lacking().values()))

        sites.harms[at] = noted
        start(sites)
        refused = any(LACKS in error for number, error in sites.errors if number == at)
        # A copy from before a message that cost nothing lacks nothing.
        assert refused == (before[0] > 0), age
        if refused and not then:
            recover(sites.folder)
        assert not sites.lacking(), age
        if then and refused and kind in GOES_ON:
            assert len(sites.errors) == 1


@EACH
def test_a_restarted_site_is_told_as_it_enrols(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's log says what the site lacks, and the site has the receipt."""

    def restart(sites: Sites) -> None:
        lose(sites)
        sites.restart()

    # A tuner has no enrolment: it knows the site again by its first reply.
    at = 6 if kind == "tuner" else 0
    sites = _harmed(kind, tmp_path, restart, then=False, at=at)
    assert said(caplog.text, sites.folder), "the site's own log does not say it"
    if kind in GOES_ON[:1]:
        assert f"agent-id={SITE} came with a ledger that lacks releases" in caplog.text
    assert "1 release" in recover(sites.folder) or kind == "tuning"
    assert not sites.lacking()


def test_a_tuner_asks_no_ballot_of_a_node_that_it_has_not_heard(tmp_path: Path) -> None:
    """One that comes back before a ballot, and has not evaluated what it is about."""
    got: list[int] = []

    def restart(sites: Sites) -> None:
        lose(sites)
        sites.restart()
        got.append(len(sites.released))

    sites = _harmed("tuner", tmp_path, restart, then=False, at=7)
    assert len(sites.released) == got[0] == 1


@EACH
def test_a_site_that_is_lost_between_two_runs_is_noticed(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class End(Exception):  # noqa: N818
        """Stands for whatever ends a ServerApp."""

    def end(sites: Sites) -> None:
        raise End

    sites, start = KINDS[kind](tmp_path)
    sites.harms = {AFTER[kind]: end}
    with pytest.raises(End):
        start(sites)
    lose(sites)
    again, start = KINDS[kind](tmp_path)
    start(again)
    again.released |= sites.released
    assert said(caplog.text, again.folder)
    assert any(LACKS in error for _, error in again.errors)
    recover(again.folder)
    assert not again.lacking()


@EACH
def test_clones_at_once_are_told_apart(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clone = tmp_path / "clone"

    def clone_site(sites: Sites) -> None:
        shutil.copytree(sites.folder, clone)
        [node] = sites.nodes
        config = {**sites.contexts[node].node_config, "fbo-folder": str(clone)}
        sites.add_node(config, sites.contexts[node].run_config)

    sites = _harmed(kind, tmp_path, clone_site, then=False)
    words = "every site needs an agent-id and a folder of its own"
    if kind == "tuning":  # it had a release less when it enrolled
        words = f"agent-id={SITE} came with a ledger that lacks releases"
    elif kind != "tuner":
        words = "every agent needs a folder of its own"
    assert words in caplog.text
    assert not sites.lacking()


@EACH
def test_a_clone_that_is_used_in_turn_is_noticed(kind: str, tmp_path: Path) -> None:
    clone, at = tmp_path / "clone", AFTER[kind]

    def use(which: Path) -> Callable[[Sites], None]:
        def use_it(sites: Sites) -> None:
            [node] = sites.nodes
            sites.contexts[node].node_config["fbo-folder"] = str(which)

        return use_it

    def copy(sites: Sites) -> None:
        shutil.copytree(sites.folder, clone)

    sites, start = KINDS[kind](tmp_path)
    sites.harms = {
        2: copy,
        at: use(clone),
        at + 1: use(sites.folder),
    }
    start(sites)
    lacks = sites.lacking(clone)
    refused = any(LACKS in text for number, text in sites.errors if number == at)
    assert refused == bool(lacks)
    assert not sites.lacking()  # the original has all that counted
    if refused:
        receipts = server_receipts(tmp_path / "server", tmp_path / "receipts.json")
        recover(clone, receipts)
        assert not sites.lacking(clone)


def test_another_agent_id_in_a_study_is_not_answered(tmp_path: Path) -> None:
    def rename(sites: Sites) -> None:
        [node] = sites.nodes
        sites.contexts[node].node_config["agent-id"] = 7

    sites, start = KINDS["tuning"](tmp_path)
    sites.harms = {3: rename}
    start(sites)
    assert len(charges_in(sites.folder)) == 2  # and no third
    assert not sites.lacking()


# One site, and receipts that somebody writes.


class Server:
    """Signs receipts of a study with two releases or more."""

    def __init__(self, num_releases: int = 3) -> None:
        self.study = study_of((Charge(9.0),) * num_releases)
        self.book = ReceiptBook(KEY, self.study.promise)

    def ask(self, node: Node, release: int, receipt: Any = None) -> Answer:
        config = asked_of(self.study, release - 1, release)
        text = self.book.receipt(0) if receipt is None else receipt
        if text:
            config[RECEIPT_ENTRY] = text
        answer = node.ask(site_of(None), config)
        mark = read_mark(answer.metrics)
        assert mark is not None
        self.book.note(0, mark, [release])
        self.book.commit()
        return answer


def test_each_release_has_a_mark_of_its_own(tmp_path: Path) -> None:
    server, node = Server(), Node(tmp_path)
    first = read_mark(node.ask(site_of(None), server.study.enrolment()).metrics)
    assert first is not None
    assert first.charges == 0
    assert read_mark(node.ask(site_of(None), server.study.enrolment()).metrics) == first
    marks = [read_mark(server.ask(node, k).metrics) for k in (1, 2, 2, 3)]
    assert [mark and mark.charges for mark in marks] == [1, 2, 2, 3]
    assert len({mark and mark.head for mark in marks}) == 3
    # Another site's, and another study's, say nothing of these.
    other = node.ask(site_of(None), study_of(study_id="two").enrolment())
    mark = read_mark(other.metrics)
    assert mark is not None
    assert mark.charges == 0
    assert mark.head not in {m.head for m in marks if m} | {first.head}


def _tampered(text: str, **fields: Any) -> str:
    values = json.loads(text)
    values["receipt"] = json.dumps(json.loads(values["receipt"]) | fields)
    return json.dumps(values)


def test_a_receipt_that_somebody_has_changed_is_refused(tmp_path: Path) -> None:
    server, node = Server(), Node(tmp_path)
    server.ask(node, 1)
    good = server.book.receipt(0)
    values = json.loads(good)
    wrong = [
        _tampered(good, charges=0),
        _tampered(good, releases=[]),
        _tampered(good, study_id="two"),
        _tampered(good, slot=2),
        json.dumps({**values, "signature": "00" * 64}),
        json.dumps({**values, "signature": "x"}),
        json.dumps({**values, "server": "ff" * 32}),
        json.dumps({**values, "receipt": None}),
        json.dumps([values]),
        good[:-1],
        "x",
        7,
    ]
    rows = charges_in(tmp_path)
    for text in wrong:
        with pytest.raises(RefusedError, match="receipt is not valid"):
            server.ask(node, 2, text)
    with pytest.raises(RefusedError):
        server.ask(node, 2, good + " " * 100_000)
    assert charges_in(tmp_path) == rows
    assert not list(tmp_path.glob("receipt-*"))
    server.ask(node, 2)


def _of_another_version(text: str, key: ServerKey) -> str:
    """Return a receipt whose promise has no unit of privacy, signed anew."""
    receipt = SignedReceipt.read(text).receipt

    class Older:
        """A receipt as an older server knows it."""

        def to_json(self) -> dict[str, Any]:
            body: dict[str, Any] = to_json(receipt)
            del body["promise"]["unit"]
            return body | {"charges": receipt.charges + 1, "head": 7}

    older: Any = Older()
    return key.signed(older)


def test_a_receipt_of_another_version_says_so(tmp_path: Path) -> None:
    """To whoever runs the site; the server learns that it is not valid, as ever."""
    server, node = Server(), Node(tmp_path)
    server.ask(node, 1)
    text = _of_another_version(server.book.receipt(0), server.book._key)
    said = "has another version of flwr_fbo. Install the same one at the server and"
    with pytest.raises(RefusedError, match=said) as refused:
        server.ask(node, 2, text)
    assert refused.value.public == "This server's receipt is not valid."
    kept = tmp_path / "receipt-0.json"
    kept.write_text(text)
    with pytest.raises(JournalError, match=rf"{kept.name} cannot be read .* {said}"):
        check_kept(tmp_path, None)


def test_a_receipt_of_another_study_or_site_is_refused(tmp_path: Path) -> None:
    server, node = Server(), Node(tmp_path)
    server.ask(node, 1)
    promise = server.study.promise
    for key, slot, words in (
        (("tuning", "two"), 0, "about another study"),
        (("linear-bandit", "one"), 0, "about another study"),
        (KEY, 2, "about another site"),
    ):
        book = ReceiptBook(key, promise)
        book.note(slot, Mark(1, 5), [1])
        book.commit()
        with pytest.raises(RefusedError, match=words):
            server.ask(node, 2, book.receipt(slot))
    assert not list(tmp_path.glob("receipt-*"))


@pytest.mark.parametrize("order", [1, -1])
def test_each_of_several_receipts_is_looked_at(tmp_path: Path, order: int) -> None:
    """A tuner's message has one for each study: a right one hides no other."""
    server, node = Server(), Node(tmp_path)
    server.ask(node, 1)
    right, book = server.book.receipt(0), ReceiptBook(("tuning", "two"), Promise())
    book.note(0, Mark(1, 5), [1])
    book.commit()
    node_config: Any = {"agent-id": 0, "fbo-folder": str(tmp_path)}
    gate = Gate(Context(1, 1, node_config, RecordDict(), {}), tmp_path)
    gate.hear([right], 0, "tuning")
    with pytest.raises(JournalError, match="lacks charge 1 of study two"):
        gate.hear([right, book.receipt(0)][::order], 0, "tuning")


def test_another_server_cannot_go_on_with_a_study(tmp_path: Path) -> None:
    server, node = Server(), Node(tmp_path)
    server.ask(node, 1)
    server.ask(node, 2)  # the first message with a receipt: its key is kept
    other = ReceiptBook(KEY, server.study.promise)
    other.note(0, server.book.mark(0), [1, 2])
    other.commit()
    with pytest.raises(RefusedError, match="signed by another server"):
        server.ask(node, 3, other.receipt(0))
    server.ask(node, 3)


def test_an_older_receipt_changes_nothing(tmp_path: Path) -> None:
    """As a server whose own record is an older copy would send it."""
    server, node = Server(4), Node(tmp_path)
    server.ask(node, 1)
    first = server.book.receipt(0)
    server.ask(node, 2)
    server.ask(node, 3, first)
    lost = tmp_path / "new"
    file = tmp_path / "receipts.json"
    file.write_text(server.book.receipt(0))
    assert "3 by receipts" in recover(lost, file)
    (tmp_path / "old.json").write_text(first)
    assert "0 releases added" in recover(lost, tmp_path / "old.json")
    server.ask(Node(lost), 4, first)


def test_a_reply_that_was_lost_is_no_fault(tmp_path: Path) -> None:
    server, node = Server(), Node(tmp_path)
    server.ask(node, 1)
    server.ask(node, 2)
    ahead = node.ask(site_of(None), asked_of(server.study, 2, 3))
    assert read_mark(ahead.metrics).charges == 3  # type: ignore[union-attr]
    server.ask(node, 3)
    assert len(charges_in(tmp_path)) == 3


def test_what_was_sent_and_lost_counts_too_after_a_recovery(tmp_path: Path) -> None:
    server, node = Server(4), Node(tmp_path)
    server.ask(node, 1)
    for release in (2, 3):  # which the server does not get
        node.ask(site_of(None), asked_of(server.study, release - 1, release))
    server.ask(node, 4)
    file = tmp_path / "receipts.json"
    file.write_text(server.book.receipt(0))
    assert "4 by receipts" in recover(tmp_path / "new", file)
    assert charges_in(tmp_path / "new") == [Charge(9.0)] * 4


def test_two_copies_that_went_on_apart_are_told_apart(tmp_path: Path) -> None:
    """Each has charged the same release: they are two messages on the same data."""
    server, node = Server(), Node(tmp_path / "a")
    server.ask(node, 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    clone = Node(tmp_path / "b")
    clone.ask(site_of(None), asked_of(server.study, 1, 2))
    server.ask(node, 2)
    with pytest.raises(JournalError, match="lacks charge 2"):
        server.ask(clone, 3)
    assert "1 by receipts" in recover(tmp_path / "b")
    assert charges_in(tmp_path / "b") == [Charge(9.0)] * 3
    server.ask(clone, 3)


def test_only_so_many_receipts_are_kept(tmp_path: Path) -> None:
    """A server can write one for each of endless studies."""
    for number in range(120):
        study = study_of((Charge(9.0),), study_id=f"s{number}")
        book = ReceiptBook(("tuning", study.study_id), study.promise)
        book.note(0, Mark(1, 5), [1])
        book.commit()
        config = {**study.enrolment(), RECEIPT_ENTRY: book.receipt(0)}
        with pytest.raises(JournalError, match="lacks charge 1"):
            Node(tmp_path).ask(site_of(None), config)
    assert len(list(tmp_path.glob("receipt-*"))) == 100
    assert charges_in(tmp_path) == []


def test_a_site_without_a_folder_of_its_own_ignores_receipts(tmp_path: Path) -> None:
    study = study_of((Charge(9.0),) * 2)
    book = ReceiptBook(KEY, study.promise)
    book.note(0, Mark(1, 5), [1])
    book.commit()
    config = {**asked_of(study, 1, 2), RECEIPT_ENTRY: book.receipt(0)}
    run_config = {"fbo-folder": str(tmp_path)}
    for context in (
        Context(1, 1, {"agent-id": 0}, RecordDict(), {}),
        Context(1, 1, {"agent-id": 0}, RecordDict(), dict(run_config)),
    ):
        answer = site_of(None).answer(context, [], config)
        assert answer.arrays
        assert read_mark(answer.metrics) is None


def test_check_site_and_show_say_what_is_lacking_and_recovered(tmp_path: Path) -> None:
    server, site = Server(4), tmp_path / "site"
    server.ask(Node(site), 1)
    Node(site).ask(site_of(None), asked_of(server.study, 1, 2))  # which is lost
    server.ask(Node(site), 3)
    shutil.rmtree(site)
    with pytest.raises(JournalError, match="lacks charge 3"):
        server.ask(Node(site), 4)
    config = f'agent-id=0 fbo-folder="{site}"'
    checked = CliRunner().invoke(command, ["check-site", config])
    assert checked.exit_code == 1
    assert f"ledger recover {site}" in " ".join(checked.output.split())
    recover(site)
    checked = CliRunner().invoke(command, ["check-site", config])
    assert checked.exit_code == 0, checked.output
    assert ": 3 charges, epsilon " in checked.output
    shown = " ".join(
        CliRunner().invoke(command, ["ledger", "show", str(site)]).output.split()
    )
    assert "3 releases of all studies together" in shown
    assert re.search(r"\bunknown\b", shown)


def test_an_operator_restores_a_backup(tmp_path: Path) -> None:
    """As the page says: the folder whole, `ledger recover`, and on."""
    server, site, backup = Server(4), tmp_path / "site", tmp_path / "backup"
    server.ask(Node(site), 1)
    shutil.copytree(site, backup)
    server.ask(Node(site), 2)
    server.ask(Node(site), 3)
    shutil.rmtree(site)
    shutil.copytree(backup, site)
    record = tmp_path / "receipts.json"
    record.write_text(server.book.receipt(0) + "\n")
    text = recover(site, record)
    assert "2 releases added, 2 by receipts; the ledger has 3 now" in text
    assert SignedReceipt.read(server.book.receipt(0)).server in text
    server.ask(Node(site), 4)
    assert charges_in(site) == [Charge(9.0)] * 4


def test_a_bad_file_of_receipts_adds_nothing(tmp_path: Path) -> None:
    server, node = Server(), Node(tmp_path / "a")
    server.ask(node, 1)
    good = server.book.receipt(0)
    for text in ("x", good + "\n" + good[:-2], _tampered(good, charges=9)):
        (tmp_path / "bad.json").write_text(text)
        arguments = ["ledger", "recover", str(tmp_path), str(tmp_path / "bad.json")]
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code != 0
        assert "cannot be read as receipts" in " ".join(result.output.split())
        assert not (tmp_path / FILE_NAME).exists()


def test_a_server_prints_its_receipts(tmp_path: Path) -> None:
    sites, start = KINDS["tuning"](tmp_path)
    start(sites)
    arguments = ["ledger", "receipts", str(tmp_path / "server")]
    every = CliRunner().invoke(command, arguments).output.splitlines()
    assert len(every) == 3
    one = CliRunner().invoke(command, [*arguments, "--slot", str(SITE)]).output
    receipt = SignedReceipt.read(one.strip()).receipt
    assert receipt.slot == SITE
    assert receipt.releases == (1, 2, 3, 4, 5)
    file = tmp_path / "receipts.json"
    file.write_text(one)
    lose(sites)
    assert "5 by receipts" in recover(sites.folder, file)
    assert not sites.lacking()
    for folder, words in (
        (tmp_path / "no", "no record of a server"),
        (tmp_path / "server", "no receipts for slot 9"),
    ):
        options = ["ledger", "receipts", str(folder), "--slot", "9"]
        result = CliRunner().invoke(command, options)
        assert result.exit_code != 0
        assert words in " ".join(result.output.split())


def test_a_tuner_prints_its_receipts(tmp_path: Path) -> None:
    sites, start = KINDS["tuner"](tmp_path)
    start(sites)
    arguments = ["ledger", "receipts", str(tmp_path / "server"), "--slot", str(SITE)]
    one = CliRunner().invoke(command, arguments).output
    receipt = SignedReceipt.read(one.strip()).receipt
    assert receipt.releases == (1, 2, 3)
    assert len(charges_in(sites.folder)) == 3


def test_enrolments_leave_nothing_that_grows(tmp_path: Path) -> None:
    for number in range(30):
        Node(tmp_path).ask(site_of(None), study_of(study_id=f"s{number}").enrolment())
    [note] = tmp_path.iterdir()
    assert note.stat().st_size < 200


def test_a_receipt_is_as_it_was_signed() -> None:
    server = Server()
    server.book.note(3, Mark(2, 2**62 - 1), [1, 0])
    assert server.book.receipt(3) == ""  # before it is committed
    server.book.commit()
    one = SignedReceipt.read(server.book.receipt(3))
    assert one.receipt.releases == (1, 0)
    assert one.receipt.charge_of(0) == Charge(0.0)
    assert one.receipt.charge_of(1) == Charge(9.0)
    again = ReceiptBook.from_json(json.loads(json.dumps(server.book.to_json())))
    assert SignedReceipt.read(again.receipt(3)).server == one.server
    assert again.is_behind(3, Mark(1, 7))
    assert again.is_behind(3, Mark(2, 7))
    assert again.is_behind(3, None)
    assert not again.is_behind(3, Mark(3, 7))
    assert not again.is_behind(4, None)
    wrong: list[dict[str, Any]] = [{"slot": -2}, {"head": 2**62}, {"releases": (1, 1)}]
    for fields in wrong:
        with pytest.raises(ValueError, match=next(iter(fields))):
            replace(one.receipt, **fields)
