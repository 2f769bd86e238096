"""A private choice that protects one example: tuners, sites, and what is shown."""

import html
import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
    UserConfig,
)
from flwr.serverapp.exception import AggregationError

from flwr_fbo import Halving, PrivateChoice, Seeds, tuner_mod
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.gaussian import gaussian_epsilon
from flwr_fbo.privacy.guarantee import CLIENT, EXAMPLE
from flwr_fbo.privacy.spending_ledger import Charge, Promise, SpendingLedger
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.tuner.ballots.example_ballots import ExampleBallots
from flwr_fbo.tuner.choosers.private import PrivateChooser
from flwr_fbo.tuner.decisions.enough_voices import (
    after_first_rung,
    enough_examples,
    examples_needed,
    lost_if_all_agree,
)
from flwr_fbo.tuner.decisions.lead_over_defaults import lead_over_defaults
from flwr_fbo.tuner.decisions.rung_evidence import check_evidence
from flwr_fbo.tuner.decisions.survivors import survivors_of
from flwr_fbo.tuner.message_headers import (
    ReplyHeader,
    TrialsHeader,
    pack,
    read_header,
)
from flwr_fbo.tuner.records.trials_record import FILE_NAME
from tests.support.apps import (
    NUM_CLIENTS,
    RUN_CONFIG,
    DyingGrid,
    Ended,
    in_process,
    main_of,
    message_app,
    num_examples,
    recording,
    server_context,
    tuner,
)
from tests.support.command import invoke
from tests.support.federation import charges_in
from tests.support.gate import PROMISE, Site, gate_app

RANGE = (0.0, 10.0)  # of the distances of the app
DELTA, N, K = 1e-5, 6, 4
SCHEDULE = Halving(4, (1, 2), parallel=2)
TINY_NOISE = PrivateChoice(1000.0, DELTA, "example", metric_range=RANGE)
TERMS = "per example (replaced by another, delta 1e-05)"
NUM_EXAMPLES = sum(num_examples(client) for client in range(NUM_CLIENTS))


def _start(grid: Any = None, **options: Any) -> Any:
    study = {"schedule": SCHEDULE, "privacy": TINY_NOISE, **options}
    grid = in_process() if grid is None else grid
    return tuner(**study).start(main_of(), grid, server_context())


def _chooser(epsilon: float = 0.5, num_rungs: int = 1, **more: Any) -> PrivateChooser:
    choice = PrivateChoice(epsilon, DELTA, "example", **more)
    return PrivateChooser(choice, N, num_rungs, noise_seed=0)


def _said(values: list[Any], counts: list[int]) -> dict[int, Any]:
    ballots = ExampleBallots(0.0, 1.0, 10_000)
    return {
        client: ballots.vector(np.array(means), np.full(len(means), float(count)))
        for client, (means, count) in enumerate(zip(values, counts, strict=True))
    }


# -- the release ------------------------------------------------------------------


def test_the_noise_is_that_of_its_epsilon_for_one_example() -> None:
    """Measured: noise in examples, over what one of them can change."""
    chooser, num_trials, counts = _chooser(), 4000, {0: 300, 1: 200}
    scores = chooser.choose(0, {}, num_trials, {}).vectors
    distance = chooser.ballots.distance(num_trials)
    row = chooser.choose(0, dict.fromkeys(counts, None), num_trials, counts)
    assert row.facts["noise_std"][0] == pytest.approx(row.vectors.std(), rel=0.05)
    examples_std = row.vectors.std() * 500
    assert distance is not None
    assert gaussian_epsilon(DELTA, distance / examples_std) == pytest.approx(
        0.5, rel=0.1
    )
    assert scores.std() == pytest.approx(examples_std, rel=1e-6)


@pytest.mark.parametrize("num_trials", [2, 5, 16])
def test_replacing_one_example_moves_a_release_by_the_sensitivity_at_most(
    num_trials: int,
) -> None:
    rng, counts = np.random.default_rng(0), {n: 20 + n for n in range(N)}
    values = {n: rng.random((c, num_trials)).round() for n, c in counts.items()}
    chooser, moved = _chooser(), 0.0

    def released() -> LedgerRow:
        means = [values[n].mean(axis=0).tolist() for n in range(N)]
        said = _said(means, list(counts.values()))
        return chooser.choose(0, said, num_trials, counts)

    before = released()
    for _ in range(30):
        client = int(rng.integers(N))
        kept = values[client][0].copy()
        values[client][0] = 1 - kept
        moved = max(moved, float(np.linalg.norm(released().vectors - before.vectors)))
        values[client][0] = kept
    assert 0 < moved <= before.facts["sensitivity"] * (1 + 1e-9)
    expected = chooser.ballots.distance(num_trials)
    assert before.facts["sensitivity"] * sum(counts.values()) == pytest.approx(expected)


def test_a_score_is_a_difference_of_means_over_all_examples() -> None:
    chooser, counts = _chooser(1000.0), [100, 300]
    said = _said([[0.2, 0.4], [0.6, 1.0]], counts)
    row = chooser.choose(0, said, 2, dict(enumerate(counts)))
    means = np.array([0.5, 0.85])
    np.testing.assert_allclose(row.vectors, means - means.mean(), atol=0.01)
    assert row.facts["num_examples"] == 400


def test_a_client_that_lies_counts_as_the_largest_and_no_more() -> None:
    chooser, honest = _chooser(1000.0, max_examples=100), {0: 100, 1: 100, 2: 100}
    said = _said([[0.9, 0.5]] * 3, [100] * 3)
    lie = np.array([-1e30, 1e30])
    row = chooser.choose(0, {**said, 3: lie}, 2, {**honest, 3: 10**12})
    assert row.facts["num_examples"] == 400
    # Three times 40 more right in the first trial, and a liar's 100 for the second.
    assert row.vectors[0] - row.vectors[1] == pytest.approx((120 - 100) / 400, abs=0.05)
    silent = chooser.choose(0, {**said, 3: lie}, 2, honest)  # it claims to have none
    assert silent.vectors[0] - silent.vectors[1] == pytest.approx(0.4, abs=0.05)


def test_rungs_share_epsilon_and_the_promise_names_the_unit() -> None:
    promise = _chooser(num_rungs=3).promise(0)
    assert (promise.unit, promise.num_releases, promise.delta) == (EXAMPLE, 3, DELTA)
    facts = [
        {"study_kind": "x", "study_id": "y", "charge": [c.noise_multiplier, 1.0, 3]}
        for c in promise.charges
    ]
    assert len(facts) == 1
    mu = math.sqrt(3) / promise.charges[0].noise_multiplier
    assert gaussian_epsilon(DELTA, mu) == pytest.approx(0.5, rel=1e-3)


# -- whole tuners -----------------------------------------------------------------


def test_the_best_is_chosen_and_what_is_spent_names_the_example() -> None:
    result = _start()
    exact = _start(privacy=None)
    assert result.best == exact.best
    assert result.privacy_spent.guarantee.unit == EXAMPLE
    assert TERMS in str(result)
    assert result.privacy_spent.to_json()["unit"] == "example"
    for private, public in zip(result.rungs, exact.rungs, strict=True):
        scores = dict(zip(private.trials, private.scores, strict=True))
        means = dict(zip(public.trials, public.scores, strict=True))
        both = sorted(set(scores) & set(means))
        found = np.array([scores[trial] for trial in both])
        expected = -np.array([means[trial] for trial in both]) / 10
        np.testing.assert_allclose(
            found - found.mean(), expected - expected.mean(), atol=0.02
        )


def test_secure_sums_give_what_a_trusted_server_finds() -> None:
    trusted = _start()
    secure = _start(
        aggregation=SecureAggregation(threshold=4, honest=4), seeds=Seeds(study=1)
    )
    assert secure.best == trusted.best
    assert secure.privacy_spent.guarantee.trust == "sums"
    first = [np.array(result.rungs[0].scores) for result in (secure, trusted)]
    np.testing.assert_allclose(first[0], first[1], atol=0.03)


def test_it_goes_on_after_any_send_and_releases_no_rung_twice(tmp_path: Path) -> None:
    grid = recording()
    whole = _start(grid)
    for dies_at in range(1, len(grid.sends), 3):
        folder = tmp_path / str(dies_at)
        dying = DyingGrid(message_app(), NUM_CLIENTS, run_config=RUN_CONFIG)
        dying.dies_at = dies_at
        with pytest.raises(Ended):
            _start(dying, folder=folder)
        dying.dies_at = -1
        result = _start(dying, folder=folder)
        assert result.privacy_spent == whole.privacy_spent
        assert len(result.rungs) == len(whole.rungs)


def test_the_unit_is_printed_wherever_a_tuner_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "flwr.fbo"):
        _start(folder=tmp_path / "tuner")
    assert f"epsilon 1000 {TERMS} covers what the releases reveal" in caplog.text
    for command in (["ledger", "show"], ["show"]):
        found = invoke(*command, str(tmp_path / "tuner"))
        text = " ".join(found.output.split())
        assert found.exit_code == 0, found.output
        assert "per example (replaced by another, delta 1e-05" in text
        assert "per client" not in text
    page = tmp_path / "page.html"
    found = invoke("report", str(tmp_path / "tuner"), "--output", str(page))
    assert found.exit_code == 0, found.output
    assert "per example (replaced by another, delta 1e-05" in page.read_text()
    assert "one example's scores" in html.unescape(page.read_text())


# -- what is refused --------------------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "several metrics": ({"metric": {"distance": 1.0, "n": 2.0}}, "^metric="),
    "one with a weight": ({"metric": {"distance": 2.0}}, "^metric="),
    "the server's scores": ({"score": "server"}, "^privacy="),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_mean_over_examples_is_refused_before_any_work(name: str) -> None:
    options, start = BAD[name]
    grid = recording()
    with pytest.raises(ValueError, match=start):
        _start(grid, **options)
    assert grid.sends == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"metric_range": (0, 1)}, "metric_range"),
        ({"max_examples": 5}, "max_examples"),
        ({"protects": "example", "metric_range": (1, 0)}, "metric_range"),
        ({"protects": "example", "metric_range": (0, math.inf)}, "metric_range"),
        ({"protects": "example", "metric_range": 1}, "metric_range"),
        ({"protects": "example", "max_examples": 0}, "max_examples"),
        ({"protects": "patient"}, "protects"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}="):
        PrivateChoice(0.5, DELTA, **options)


def _changed(change: Any) -> Any:
    """Return an app whose replies to evaluate have other metrics."""

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        if message.metadata.message_type == "evaluate" and reply.has_content():
            for name, record in reply.content.metric_records.items():
                metrics = dict(record)
                change(metrics)
                reply.content[name] = MetricRecord(metrics)
        return reply

    return message_app(first=(tuner_mod, mod))


@pytest.mark.parametrize(
    "change",
    [
        lambda metrics: metrics.pop("num-examples"),
        lambda metrics: metrics.update({"num-examples": 10.5}),
    ],
)
def test_a_weight_that_is_no_number_of_examples_is_refused(change: Any) -> None:
    with pytest.raises(Exception, match="whole number of examples"):
        _start(in_process(_changed(change)))


@pytest.mark.parametrize("value", [11.0, -1.0, math.nan])
def test_means_out_of_the_range_everywhere_end_the_tuner(
    value: float, caplog: pytest.LogCaptureFixture
) -> None:
    def change(metrics: dict[str, Any]) -> None:
        metrics["distance"] = value

    with pytest.raises(AggregationError, match=f"of {NUM_EXAMPLES} examples are at"):
        _start(in_process(_changed(change)))
    assert "none within metric_range" in caplog.text
    assert ("no epsilon holds for it" in caplog.text) == math.isfinite(value)


# -- sites ------------------------------------------------------------------------

EXAMPLES = ExampleBallots(0.0, 1.0, 100)
OF_EXAMPLE = Promise((Charge(5.0),), private=True, delta=DELTA, unit=EXAMPLE)
LIMIT_OF_CLIENT: UserConfig = {
    "fbo-max-epsilon-per-client": 8.0,
    "fbo-max-delta": DELTA,
}
LIMIT_OF_EXAMPLE: UserConfig = {
    "fbo-max-epsilon-per-example": 8.0,
    "fbo-max-delta": DELTA,
}


def test_a_ballot_is_of_what_the_promise_protects(tmp_path: Path) -> None:
    """Else a server could have it charged where it costs less."""
    for promise, examples, is_refused in (
        (OF_EXAMPLE, EXAMPLES, False),
        (OF_EXAMPLE, None, True),
        (Promise((Charge(5.0),), True, DELTA), EXAMPLES, True),
        (Promise((Charge(5.0),), True, DELTA), None, False),
    ):
        folder = tmp_path / f"{promise.unit.protects}-{examples is None}"
        site = Site(gate_app(), **{"fbo-folder": str(folder)})
        reply = site.ask_ballot(promise=promise, examples=examples)
        assert reply.has_error() == is_refused
        assert len(charges_in(folder)) == (not is_refused)
        if is_refused:
            assert "the unit of its epsilon" in str(reply.error.reason)


def _grid(tmp_path: Path, **limits: Any) -> Any:
    configs: list[UserConfig] = [
        {
            "partition-id": n,
            "num-partitions": NUM_CLIENTS,
            "fbo-folder": str(tmp_path / str(n)),
            "fbo-metric-range": f"{RANGE[0]}..{RANGE[1]}",
            **limits,
        }
        for n in range(NUM_CLIENTS)
    ]
    return in_process(node_configs=configs)


def test_a_limit_per_client_takes_part_in_no_choice_per_example(
    tmp_path: Path,
) -> None:
    choice = PrivateChoice(4.0, DELTA, "example", metric_range=RANGE)
    about = {"privacy": choice, "seeds": Seeds(study=1)}
    with pytest.raises(AggregationError, match="max_epsilon_per_example"):
        _start(_grid(tmp_path / "client", **LIMIT_OF_CLIENT), **about)
    assert not any((tmp_path / "client").rglob("spending.sqlite"))
    _start(_grid(tmp_path / "example", **LIMIT_OF_EXAMPLE), **about)
    with SpendingLedger.held(tmp_path / "example" / "0") as ledger:
        facts = ledger.facts()
    assert {tuple(one["unit"]) for one in facts} == {("example", "replaced")}
    assert Spent.of(EXAMPLE, facts).epsilon(DELTA) == pytest.approx(4.0, rel=1e-3)
    assert Spent.of(CLIENT, facts).epsilon(DELTA) == 0.0


def test_a_limit_per_example_counts_a_choice_per_client_at_twice_the_distance(
    tmp_path: Path,
) -> None:
    about = {"privacy": PrivateChoice(4.0, DELTA), "seeds": Seeds(study=1)}
    with pytest.raises(AggregationError, match="takes no part"):
        _start(_grid(tmp_path, **LIMIT_OF_EXAMPLE), **about)


def test_a_sum_with_less_noise_than_one_example_needs_is_refused(
    tmp_path: Path,
) -> None:
    """A server that says that examples move a ballot by less than they do."""
    grid = recording()
    send = grid.send_and_receive
    errors: list[str] = []

    def lying(messages: Any, **options: Any) -> Any:
        asked = list(messages)
        for message in asked:
            record = message.content.get("fbo-tuner")
            if isinstance(record, ConfigRecord):
                fields = json.loads(str(record["fields"]))
                if fields.get("sums"):
                    fields["sums"]["settings"]["distance"] /= 100
                    record["fields"] = json.dumps(fields)
        replies = list(send(asked, **options))
        errors.extend(str(r.error.reason) for r in replies if r.has_error())
        return replies

    grid.send_and_receive = lying  # type: ignore[method-assign]
    with pytest.raises(AggregationError):
        _start(
            grid,
            aggregation=SecureAggregation(threshold=4, honest=4),
            seeds=Seeds(study=1),
        )
    assert errors
    assert all("sums are not of such ballots" in error for error in errors)


def test_num_examples_is_told_and_only_where_one_is_protected() -> None:
    for examples, promise, expected in ((EXAMPLES, OF_EXAMPLE, 1), (None, PROMISE, 0)):
        site, settings = Site(gate_app()), ({"x": 0.0}, {"x": 1.0})
        about = "a", (0, 1), settings, (0, 1), {"acc": 1.0}, True, promise
        trials = TrialsHeader(*about, examples=examples)
        site.ask(pack(trials, {0: RecordDict(), 1: RecordDict()}))
        reply = site.ask_ballot(promise=promise, examples=examples)
        header = read_header(reply.content)
        assert isinstance(header, ReplyHeader)
        assert header.num_examples == expected


class Killed(Exception):  # noqa: N818
    """Stands for whatever ends a ServerApp."""


def test_a_sum_that_was_open_when_the_server_was_killed_has_all_examples(
    tmp_path: Path,
) -> None:
    """Clients and server have them on disk, where states are lost."""
    grid, killed = _grid(tmp_path), [False]
    send = grid.send_and_receive

    def dying(messages: Any, **options: Any) -> Any:
        asked = list(messages)
        record = asked[0].content.get("fbo-tuner")
        if isinstance(record, ConfigRecord) and record["kind"] == "sum":
            fields = json.loads(str(record["fields"]))
            if fields["exchange"] == 5 and not killed[0]:
                killed[0] = True
                list(send(asked[:3], **options))
                raise Killed
        return send(asked, **options)

    grid.send_and_receive = dying
    about: dict[str, Any] = {
        "aggregation": SecureAggregation(threshold=4, honest=4),
        "seeds": Seeds(study=1),
        "folder": tmp_path / "tuner",
    }
    with pytest.raises(Killed):
        _start(grid, **about)
    for context in grid.contexts.values():
        context.state = RecordDict()
    _start(grid, **about)
    with Journal(None, tmp_path / "tuner" / FILE_NAME) as journal:
        assert journal.ledger()[0].facts["num_examples"] == NUM_EXAMPLES


# -- evidence ---------------------------------------------------------------------


def _null_rows(seed: int, num: int, epsilon: float, sizes: Any) -> list[LedgerRow]:
    """Return a tuner in which all models are right with the same chance."""
    rng = np.random.default_rng(seed)
    choice = PrivateChoice(epsilon, DELTA, "example")
    chooser = PrivateChooser(choice, 1, len(sizes), noise_seed=seed)
    right = rng.random((num, sizes[0])) < 0.5  # the same examples in all rungs
    rows, alive = list[LedgerRow](), list(range(sizes[0]))
    for number, size in enumerate(sizes):
        means = right.mean(axis=0)[alive]
        ballot = chooser.ballots.vector(means, np.full(size, float(num)))
        rows.append(chooser.choose(number, {0: ballot}, size, {0: num}))
        rows[-1].facts["trials"] = alive
        left = sizes[number + 1] if number + 1 < len(sizes) else 1
        alive = [alive[place] for place in survivors_of(rows, left)]
    return rows


@pytest.mark.parametrize("epsilon", [0.5, 100.0])
def test_where_no_model_is_better_the_defaults_are_seldom_beaten(
    epsilon: float,
) -> None:
    """By noise alone, or by examples that favour a model in each rung."""
    num_beaten = 0
    for seed in range(150):
        lead = lead_over_defaults(_null_rows(seed, 400, epsilon, (16, 5, 2)), 1)
        num_beaten += lead is not None and lead.is_of_model
    assert num_beaten <= 8  # at most 3 expected


def test_a_model_that_is_better_is_found_so() -> None:
    chooser = _chooser(2.0, num_rungs=1)
    said = _said([[0.5, 0.7]] * N, [500] * N)
    row = chooser.choose(0, said, 2, dict.fromkeys(range(N), 500))
    row.facts["trials"] = [0, 1]
    lead = lead_over_defaults([row], N)
    assert lead is not None
    assert lead.is_of_model
    assert lead.deviations == pytest.approx(
        0.2 / math.sqrt(2 * (row.facts["noise_std"][0] ** 2 + 0.25 / 3000)), rel=0.5
    )


def test_examples_without_scores_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    chooser, counts = _chooser(100.0), {0: 100, 1: 300, 2: 200}
    said = _said([[0.5, 0.9], [0.4, 0.7], [math.nan, math.nan]], [100, 300, 200])
    row = chooser.choose(0, said, 2, counts)
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        check_evidence(row, N)
    (line,) = caplog.messages
    assert "of 600 examples are at clients that have no finite score" in line
    assert abs(int(line.split()[1]) - 200) < 10


def test_what_is_lost_depends_on_the_examples_in_all() -> None:
    sizes, choice = (16, 5, 2), PrivateChoice(0.5, DELTA, "example")
    losses = [lost_if_all_agree(sizes, num, choice)[0] for num in (50, 500, 5000)]
    assert losses[0] > 0.3 > losses[1] > losses[2]
    enough = enough_examples(sizes, choice)
    assert lost_if_all_agree(sizes, int(enough), choice)[0] <= 0.05
    assert lost_if_all_agree(sizes, int(enough / 2), choice)[0] > 0.05
    told = examples_needed(sizes, choice)
    assert told.startswith(f"With epsilon 0.5 {TERMS} about {enough:,.0f} validation")
    row = LedgerRow(0, {"num_examples": 100, "num_ballots": 5}, np.zeros(16))
    (few,) = after_first_rung(row, sizes, choice)
    assert few.startswith(f"Too few examples for epsilon 0.5 {TERMS}: even if all 100")
    row.facts["num_examples"] = 20_000
    (delta,) = after_first_rung(row, sizes, choice)
    assert "one over the 20000 examples" in delta
    row.facts["num_examples"] = 5_000
    assert after_first_rung(row, sizes, choice) == []


def test_the_record_has_the_number_of_examples(tmp_path: Path) -> None:
    _start(folder=tmp_path)
    with Journal(None, tmp_path / FILE_NAME) as journal:
        assert [row.facts["num_examples"] for row in journal.ledger()] == (
            [NUM_EXAMPLES] * 2
        )
