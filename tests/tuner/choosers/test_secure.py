"""Secure aggregation of ballots: what is chosen, what leaves, what is refused."""

import json
import logging
import math
from collections.abc import Callable, Iterable
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    RecordDict,
    UserConfig,
)
from flwr.serverapp.exception import AggregationError
from scipy.stats import kstest

from flwr_fbo import Halving, InProcessGrid, PrivateChoice, Seeds
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.guarantee import CLIENT
from flwr_fbo.privacy.spending_ledger import SpendingLedger
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.secure.roster import Roster, SigningKey
from flwr_fbo.tuner.ballots.rank_ballots import ballot_entries
from flwr_fbo.tuner.choosers.secure import SecureChooser
from flwr_fbo.tuner.records.trials_record import FILE_NAME
from flwr_fbo.tuning import FederationResult
from tests.support.apps import (
    NUM_CLIENTS,
    ONE_RUNG,
    RUN_CONFIG,
    TWO_RUNGS,
    RecordingGrid,
    main_of,
    message_app,
    server_context,
    tuner,
)

# So little noise that the choice is that of the exact sum.
TINY_NOISE = PrivateChoice(epsilon=1000.0, delta=1e-3)
SECURE = SecureAggregation(threshold=4, honest=4)
UNMASK = 5

Change = Callable[[Message, dict[str, Any]], None]


def _study(**options: Any) -> Any:
    defaults: dict[str, Any] = {
        "schedule": TWO_RUNGS,
        "privacy": TINY_NOISE,
        "aggregation": SECURE,
        "seeds": Seeds(study=1),
    }
    return tuner(**{**defaults, **options})


def _start(grid: Any, **options: Any) -> FederationResult:
    result: FederationResult = _study(**options).start(
        main_of(), grid, server_context()
    )
    return result


@cache
def _trusted(schedule: Halving = TWO_RUNGS) -> FederationResult:
    """Return what a trusted server finds, who reads each ballot."""
    return _start(_grid(), aggregation=None, schedule=schedule)


def _asked(message: Message) -> dict[str, Any] | None:
    """Return the fields of a message of a secure sum; None of any other."""
    record = message.content.get("fbo-tuner")
    if not isinstance(record, ConfigRecord) or record["kind"] != "sum":
        return None
    fields: dict[str, Any] = json.loads(str(record["fields"]))
    return fields


class Killed(Exception):  # noqa: N818
    """Stands for whatever ends a ServerApp."""


class SumGrid(RecordingGrid):
    """Loses replies of secure sums, or changes what is asked.

    Attributes
    ----------
    lost : callable
        Takes the fields of a message; returns whether its reply is lost.
    change : callable
        Changes a message on its way.
    dies_in : int
        Exchange in which half of the messages arrive, and the server is killed.
    """

    dies_in = 0

    lost: Callable[[dict[str, Any]], bool] = staticmethod(lambda _: False)
    change: Change = staticmethod(lambda message, fields: None)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.asked: list[dict[str, Any]] = []
        self.errors: list[str] = []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver messages and replies, but for those that are lost."""
        sent, lost = list(messages), set()
        for message in sent:
            fields = _asked(message)
            if fields is not None:
                self.asked.append(fields)
                self.change(message, fields)
                if self.lost(fields):
                    lost.add(message.metadata.dst_node_id)
        if self.asked and self.asked[-1]["exchange"] == self.dies_in:
            list(super().send_and_receive(sent[: len(sent) // 2], timeout=timeout))
            raise Killed
        replies = list(super().send_and_receive(sent, timeout=timeout))
        self.errors += [str(r.error.reason) for r in replies if r.has_error()]
        return [r for r in replies if r.metadata.src_node_id not in lost]


def _grid(configs: list[UserConfig] | None = None) -> SumGrid:
    return SumGrid(
        message_app(), NUM_CLIENTS, run_config=RUN_CONFIG, node_configs=configs
    )


def _configs(**more: Any) -> list[UserConfig]:
    """Return node configs; a callable gives each client its own value."""
    return [
        {
            "partition-id": n,
            "num-partitions": NUM_CLIENTS,
            **{key: of(n) if callable(of) else of for key, of in more.items()},
        }
        for n in range(NUM_CLIENTS)
    ]


def _ledger(folder: Path) -> list[dict[str, Any]]:
    with Journal(None, folder / FILE_NAME) as journal:
        return [row.facts for row in journal.ledger()]


def _summed(folder: Path) -> list[list[int]]:
    return [facts["summed"] for facts in _ledger(folder)]


def test_it_chooses_as_a_trusted_server_does(tmp_path: Path) -> None:
    trusted = _trusted()
    grid = _grid()
    result = _start(grid, folder=tmp_path)
    assert [r.survivors for r in result.rungs] == [r.survivors for r in trusted.rungs]
    for secure, plain in zip(result.rungs, trusted.rungs, strict=True):
        np.testing.assert_allclose(secure.scores, plain.scores, atol=0.1)
    spent, in_trust = result.privacy_spent, trusted.privacy_spent
    assert spent is not None
    assert in_trust is not None
    assert spent.epsilon == in_trust.epsilon
    assert (spent.guarantee.trust, in_trust.guarantee.trust) == ("sums", "server")
    assert _summed(tmp_path) == [list(range(NUM_CLIENTS))] * 2
    assert [f["exchange"] for f in grid.asked[::NUM_CLIENTS]] == [1, 2, 3, 4, 5] * 2


def test_the_noise_is_that_of_the_sites() -> None:
    """Its variance is the planned one, times the clients in the sum over honest."""
    choice = PrivateChoice(epsilon=2.0, delta=1e-3)
    chooser = SecureChooser(choice, 5, (40, 40), SecureAggregation(honest=3))
    sums = chooser.sums(40)
    assert sums is not None
    noise, z = sums.noise(0), sums.settings.noise_multiplier
    scores: list[float] = []
    for _ in range(100):
        total = sum(noise.wrapped(noise.draw_share()) for _ in range(5))
        found = chooser.choose(0, sums, tuple(range(5)), np.asarray(total))
        scores += found.vectors.tolist()
    std = z / 5 * math.sqrt(5 / 3)
    assert kstest(np.array(scores) / std, "norm").pvalue > 1e-9
    assert found.facts["noise_multiplier"] == z
    assert found.facts["noise_std"] == pytest.approx([z / 5 * math.sqrt(5 / 3)])


def test_no_ballot_leaves_in_the_clear() -> None:
    """Each client's numbers are masked: far larger than any ballot, and all differ."""
    grid = _grid()
    _start(grid, schedule=ONE_RUNG)
    records = [r.content for r in grid.replies]
    assert not any("fbo-ballot" in content for content in records)
    arrays = [c.array_records["fbo-sum"] for c in records if "fbo-sum" in c]
    sums = [record["reply"].numpy() for record in arrays]
    assert len(sums) == 5 * NUM_CLIENTS
    assert {a.dtype for a in sums} == {np.dtype(np.uint8)}
    entries = np.asarray(ballot_entries(6))
    text = b"".join(a.tobytes() for a in sums)
    # Two neighbours of a ballot have 8 bytes or more: no chance makes those.
    for dtype in (np.float64, np.float32):
        for pair in permutations(entries.astype(dtype), 2):
            assert np.array(pair).tobytes() not in text


def test_a_plain_run_has_ballots_in_the_clear() -> None:
    """So the reading above finds them where there are some."""
    grid = _grid()
    _start(grid, aggregation=None, schedule=ONE_RUNG)
    records = [r.content.array_records for r in grid.replies]
    ballots = [r["fbo-ballot"]["ballot"].numpy() for r in records if "fbo-ballot" in r]
    text = b"".join(ballot.tobytes() for ballot in ballots)
    pairs = permutations(np.asarray(ballot_entries(6)), 2)
    assert any(np.array(pair).tobytes() in text for pair in pairs)


@pytest.mark.parametrize("exchange", [1, 3, 4])
def test_two_clients_may_drop_out(tmp_path: Path, exchange: int) -> None:
    """Before their ballots are summed, or after."""
    grid = _grid()
    grid.lost = lambda f: f["exchange"] >= exchange and f["slot"] in (1, 4)
    result = _start(grid, folder=tmp_path, schedule=ONE_RUNG)
    expected = [0, 2, 3, 5] if exchange <= 3 else list(range(NUM_CLIENTS))
    assert _summed(tmp_path) == [expected]
    if exchange > 3:
        assert result.best == _trusted(ONE_RUNG).best


def test_too_few_end_the_run_after_some_attempts() -> None:
    grid = _grid()
    grid.lost = lambda f: f["exchange"] == 3 and f["slot"] > 2
    with pytest.raises(AggregationError, match=r"rung 1 .* has 3 valid .* needs 4"):
        _start(grid)
    assert len({f["attempt"] for f in grid.asked}) == 3


def test_an_attempt_that_fails_is_followed_by_another() -> None:
    grid = _grid()
    first: list[int] = []

    def lost(fields: dict[str, Any]) -> bool:
        first.append(fields["attempt"])
        return bool(fields["attempt"] == first[0] and fields["exchange"] == 3)

    grid.lost = lost
    result = _start(grid, schedule=ONE_RUNG)
    assert result.best == _trusted(ONE_RUNG).best
    assert len(set(first)) == 2


def test_a_site_draws_ballot_and_noise_once_a_rung() -> None:
    """Ties are random: another attempt must not sum another ballot."""
    grid = _grid()
    kept: list[Any] = []

    def lost(fields: dict[str, Any]) -> bool:
        if fields["exchange"] == 4 and fields["slot"] == 0 and len(kept) < 2:
            with _journal(grid, 0) as journal:
                arrays = journal.load_unnumbered()
            kept.append((arrays["ballot"], arrays["sum-share"]))
        return bool(fields["exchange"] == 4 and len(kept) < 2)

    grid.lost = lost
    _start(grid, seeds=Seeds(study=None))
    for first, second in zip(*kept, strict=True):
        assert first.size > 0
        np.testing.assert_array_equal(first, second)
    with _journal(grid, 0) as journal:  # nothing of it is left
        arrays = journal.load_unnumbered()
    assert arrays["ballot"].size == arrays["sum-share"].size == 0


def _journal(grid: InProcessGrid, client: int) -> Journal:
    context = list(grid.contexts.values())[client]
    record = context.state.config_records["fbo-tuner:sum"]
    content = record["journal"]
    assert isinstance(content, bytes)
    return Journal(None, content=content)


def test_a_ballot_is_charged_once(tmp_path: Path) -> None:
    grid = _grid(_configs(**{"fbo-folder": lambda n: str(tmp_path / str(n))}))
    first: list[int] = []

    def lost(fields: dict[str, Any]) -> bool:
        first.append(fields["attempt"])
        return bool(fields["attempt"] == first[0] and fields["exchange"] == 4)

    grid.lost = lost
    spent = _start(grid, privacy=PrivateChoice(2.0, 1e-3)).privacy_spent
    assert spent is not None
    with SpendingLedger.held(tmp_path / "3") as ledger:
        assert len(ledger.rows) == 2
        told = Spent.of(CLIENT, ledger.facts()).epsilon(1e-3)
        assert told == pytest.approx(spent.epsilon, rel=1e-6)


@pytest.mark.parametrize("with_folders", [True, False])
def test_a_killed_server_asks_for_the_same_sum(
    tmp_path: Path, with_folders: bool
) -> None:
    """In the last exchange, which half of the clients have answered."""
    # What was summed, and what is left to sum: no more is promised to the sites.
    more: dict[str, Any] = {"fbo-max-epsilon-per-client": 1000.0, "fbo-max-delta": 1e-3}
    if with_folders:
        more["fbo-folder"] = lambda n: str(tmp_path / str(n))
    grid = _grid(_configs(**more))
    grid.dies_in = UNMASK
    with pytest.raises(Killed):
        _start(grid, folder=tmp_path / "server")
    again = _grid(_configs(**more))
    if not with_folders:  # the same SuperNodes, in the same run
        again.contexts = grid.contexts
    result = _start(again, folder=tmp_path / "server")
    assert result.best == _trusted().best
    rungs = [f["ballot"]["rung"] for f in again.asked if f["exchange"] < UNMASK]
    assert set(rungs) == {1}  # of the first only the last exchange was asked again
    asked = {f["attempt"] for f in again.asked if f["ballot"]["rung"] == 0}
    assert asked == {grid.asked[0]["attempt"]}


def test_a_sum_that_cannot_be_unmasked_again_ends_the_tuner(tmp_path: Path) -> None:
    """Clients that have forgotten it: there is never another sum of these ballots."""
    grid = _grid()
    grid.lost = lambda f: f["exchange"] == UNMASK and f["slot"] > 0
    with pytest.raises(AggregationError, match="may have been unmasked"):
        _start(grid, folder=tmp_path)
    assert len({f["attempt"] for f in grid.asked}) == 1
    forgetful = _grid()
    with pytest.raises(AggregationError, match="did not begin here"):
        _start(forgetful, folder=tmp_path)
    assert {f["exchange"] for f in forgetful.asked} == {UNMASK}
    assert len(_ledger(tmp_path)) == 0
    grid.lost = lambda _: False
    assert len(_start(grid, folder=tmp_path).rungs) == 2


def test_a_site_unmasks_one_attempt(tmp_path: Path) -> None:
    """A server that forgets its record is refused by each site."""
    grid = _grid()
    _start(grid, schedule=Halving(6, (2,)))
    last = [f for f in grid.asked if f["exchange"] == 1]
    replies = _send(grid, [{**f, "attempt": 7} for f in last])
    assert all(reply.has_error() for reply in replies)
    assert len(grid.errors) == NUM_CLIENTS
    assert all("was unmasked: there can be no other" in text for text in grid.errors)


def _send(grid: SumGrid, asked: list[dict[str, Any]]) -> list[Message]:
    """Send requests without content to the nodes of their slots."""
    messages = []
    nodes = list(grid.contexts)
    for fields in asked:
        header = ConfigRecord({"kind": "sum", "fields": json.dumps(fields)})
        empty = ArrayRecord({"request": Array(np.zeros(0, np.uint8))})
        content = RecordDict({"fbo-tuner": header, "fbo-sum": empty})
        messages.append(Message(content, nodes[fields["slot"]], "evaluate"))
    return list(grid.send_and_receive(messages))


def _rewrite(message: Message, fields: dict[str, Any]) -> None:
    record = message.content.config_records["fbo-tuner"]
    record["fields"] = json.dumps(fields)


def test_a_changed_instruction_is_refused() -> None:
    """In a later exchange, and in another attempt at the same release."""
    grid = _grid()

    def change(message: Message, fields: dict[str, Any]) -> None:
        if fields["exchange"] == 3:
            fields["ballot"]["failed"] = [0]
            _rewrite(message, fields)

    grid.change = change
    with pytest.raises(AggregationError, match="was asked for in other words"):
        _start(grid)
    assert len(grid.errors) == NUM_CLIENTS


def test_one_client_that_is_told_another_rung_stops_the_sum() -> None:
    """Nobody can read its shares, so that nothing is unmasked."""
    grid = _grid()

    def change(message: Message, fields: dict[str, Any]) -> None:
        if fields["slot"] == 2:
            fields["ballot"]["maximize"] = True
            _rewrite(message, fields)

    grid.change = change
    with pytest.raises(AggregationError, match="has 0 shares of slot 2"):
        _start(grid)


@pytest.fixture
def pinned(tmp_path: Path) -> tuple[Path, list[UserConfig]]:
    """Return the roster's file, and node configs of sites that pin it."""
    keys = [SigningKey.draw() for _ in range(NUM_CLIENTS)]
    order = [3, 0, 5, 1, 4, 2]  # the key decides, and not the partition
    roster = Roster.draw({order[n]: key.public for n, key in enumerate(keys)})
    roster.save(tmp_path / "roster.json")
    for n, key in enumerate(keys):
        key.save(tmp_path / f"{n}.pem")
    return tmp_path / "roster.json", _configs(
        **{
            "fbo-roster": str(tmp_path / "roster.json"),
            "fbo-key": lambda n: str(tmp_path / f"{n}.pem"),
        }
    )


def test_with_a_roster_the_key_decides_the_slot(
    pinned: tuple[Path, list[UserConfig]],
) -> None:
    path, configs = pinned
    grid = _grid(configs)
    secure = SecureAggregation(4, 6, 2, roster=path)
    result = _start(grid, aggregation=secure, schedule=ONE_RUNG)
    assert result.best == _trusted(ONE_RUNG).best
    assert "no roster" not in result.trust
    assert grid.errors == []


@pytest.mark.parametrize("aggregation", [None, SECURE])
def test_sites_that_pin_a_roster_give_no_other_ballot(
    pinned: tuple[Path, list[UserConfig]], aggregation: SecureAggregation | None
) -> None:
    _, configs = pinned
    grid = _grid(configs)
    with pytest.raises(AggregationError, match=r"takes no part: .*pins"):
        _start(grid, aggregation=aggregation)
    assert len(grid.errors) == NUM_CLIENTS


def test_another_roster_is_refused(
    pinned: tuple[Path, list[UserConfig]], tmp_path: Path
) -> None:
    """One with a site of the server's own."""
    path, configs = pinned
    roster = Roster.load(path)
    keys = {**roster.keys, 2: SigningKey.draw().public}
    Roster(keys, roster.seed).save(tmp_path / "fake.json")
    fake = SecureAggregation(threshold=4, honest=4, roster=tmp_path / "fake.json")
    with pytest.raises(AggregationError, match="not have the roster that it pins"):
        _start(_grid(configs), aggregation=fake)


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("fbo-min-agents", 7),
        ("fbo-min-threshold", 5),
        ("fbo-min-honest", 5),
        ("fbo-min-colluding", 1),
        ("fbo-min-noise-multiplier", 50.0),
    ],
)
def test_a_sites_minima_hold(limit: str, value: float) -> None:
    grid = _grid(_configs(**{limit: value}))
    public = limit.removeprefix("fbo-").replace("-", "_")
    with pytest.raises(AggregationError, match=f"takes no part: {public}"):
        _start(grid)
    assert all("calls" not in c.state.config_records for c in grid.contexts.values())
    for privacy in (TINY_NOISE, None):
        with pytest.raises(AggregationError, match="no secure aggregation"):
            _start(_grid(_configs(**{limit: 1})), aggregation=None, privacy=privacy)


def test_less_noise_than_promised_is_refused() -> None:
    grid = _grid()

    def change(message: Message, fields: dict[str, Any]) -> None:
        fields["sums"]["settings"]["noise_multiplier"] /= 2
        _rewrite(message, fields)

    grid.change = change
    with pytest.raises(AggregationError, match="add less noise than the study"):
        _start(grid)
    assert len(grid.errors) == NUM_CLIENTS


def test_exact_scores_are_refused_beside_a_secure_sum() -> None:
    grid = _grid()

    def change(message: Message, fields: dict[str, Any]) -> None:
        fields["ballot"]["is_exact"] = True
        _rewrite(message, fields)

    grid.change = change
    with pytest.raises(AggregationError, match="of one bounded ballot"):
        _start(grid)


class Nameless(SumGrid):
    """Whose clients do not know their slot when they are asked for a sum."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver messages and replies; say of no client which slot it has."""
        sent = list(messages)
        is_sum = any(_asked(message) for message in sent)
        for n, context in enumerate(self.contexts.values()):
            context.node_config.pop("partition-id", None)
            if not is_sum:  # the app itself needs it
                context.node_config["partition-id"] = n
        replies = list(super().send_and_receive(sent, timeout=timeout))
        for reply in [] if is_sum else replies:
            header = reply.content.config_records["fbo-tuner"]
            fields = json.loads(str(header["fields"]))
            header["fields"] = json.dumps({**fields, "slot": -1})
        return replies


def test_clients_without_a_slot_are_summed(tmp_path: Path) -> None:
    grid = Nameless(message_app(), NUM_CLIENTS, run_config=RUN_CONFIG)
    result = _start(grid, folder=tmp_path, schedule=ONE_RUNG)
    assert result.best == _trusted(ONE_RUNG).best
    assert _summed(tmp_path) == [list(range(NUM_CLIENTS))]


def test_a_client_without_a_slot_is_summed_under_one() -> None:
    """It keeps the first slot that it is given in the run."""
    grid = Nameless(message_app(), NUM_CLIENTS, run_config=RUN_CONFIG)

    def change(message: Message, fields: dict[str, Any]) -> None:
        if (fields["exchange"], fields["slot"]) == (1, 2) and len(grid.asked) > 20:
            header = message.content.config_records["fbo-tuner"]
            header["fields"] = json.dumps({**fields, "slot": 3})

    grid.change = change
    _start(grid)
    (error,) = grid.errors
    assert "JournalError: This is the journal of another agent" in error


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("aggregation", {"aggregation": "secure"}),
        ("privacy", {"privacy": None}),
        ("privacy.noise_only", {"privacy": PrivateChoice(2.0, 1e-3, noise_only=True)}),
        ("seeds.noise", {"seeds": Seeds(noise=1)}),
        ("threshold", {"aggregation": SecureAggregation(threshold=9)}),
        ("num_slots", {"num_agents": 1}),
    ],
)
def test_what_cannot_be_is_refused_by_name(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{name}="):
        _study(**options)


def test_a_roster_of_other_slots_is_refused(tmp_path: Path) -> None:
    keys = {slot: SigningKey.draw().public for slot in range(1, NUM_CLIENTS + 1)}
    Roster.draw(keys).save(tmp_path / "roster.json")
    with pytest.raises(ValueError, match=r"^roster="):
        _study(aggregation=SecureAggregation(roster=tmp_path / "roster.json"))


def test_log_and_result_say_who_is_trusted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flwr.fbo"):
        result = _start(_grid(), schedule=ONE_RUNG)
    assert "the server learns the noisy sums, and who answered" in caplog.text
    assert "no roster: this holds against a server that follows" in caplog.text
    assert "the server learns the noisy sums" in str(result)
    assert "the server is trusted: it reads each client's ballots" in str(_trusted())
