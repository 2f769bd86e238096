"""The command ``flwr-fbo statement``: each field, computed again from the records.

The program that computes them again reads the files with sqlite3, and knows nothing of
this package: curves are those of scipy, and dp-accounting's where studies sample.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import sqlite3
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from scipy.optimize import brentq
from scipy.stats import norm
from typer.testing import CliRunner

from flwr_fbo import InProcessGrid
from flwr_fbo.cli import app
from tests.support.command import invoke, one_line_error
from tests.support.pages import Elements, assert_self_contained, headings_of
from tests.support.stated_studies import STUDIES, Played, play

WIDE = {"COLUMNS": "100"}
DELTAS = (1e-3, 1e-6, 1e-9)
SIX = (
    "FedVote",
    "FedVote, secure",
    "FedWarmStart",
    "FedUCB",
    "FedUCB, secure",
    "FedGOUCB",
    "FederationTuner",
    "FederationTuner, secure",
    "FederationTuner, examples",
    "FederationTuner, examples, secure",
)
UNITS = {"client": "zeroed", "example": "replaced"}
OF = {
    name: "client"
    if name.startswith(("FedVote", "FedWarm", "Feder")) and "examples" not in name
    else "example"
    for name in SIX
}
TRUST = {
    **dict.fromkeys(("FedVote", "FedWarmStart", "FederationTuner"), "server"),
    "FederationTuner, examples": "server",
    **dict.fromkeys((n for n in SIX if n.endswith("secure")), "sums"),
    **dict.fromkeys(("FedUCB", "FedGOUCB"), "local"),
}
AGAINST = {
    "server": "against the other sites and readers, not the server",
    "sums": "against the server too, by sums under masks",
    "local": "against the server too, by each site's own noise",
    None: "not on record",
}
CONDITIONS = {
    "FedUCB": ["for a finished table"],
    **{
        name: ["without the training"]
        for name in SIX
        if name.startswith("FederationTuner")
    },
}
GROUP = {"sites": 6, "honest": 4, "colluding": 1, "threshold": 5}
# What is said in words only: by how it begins.
EVERYWHERE = (
    "who takes part",
    "what a site's own code lets out",
    "other computations",
    "metrics that a host turned on",
)
READS = "what the operator of the server reads of each site: "
NOT_COVERED = {
    "FedVote": (f"{READS}its exact best setting", "a model that a site trains"),
    "FedVote, secure": ("a model that a site trains",),
    "FedWarmStart": (
        f"{READS}how it ranks the pool's points",
        "a model that a site trains",
        "the slot of a site: it shows its cohort",
    ),
    "FedUCB": ("what one outcome changes in later decisions", "after how many"),
    "FedUCB, secure": ("after how many",),
    "FedGOUCB": (),
    "FederationTuner": (
        f"{READS}how the site ranks",
        "the training: each model update",
        "the trained model",
    ),
    "FederationTuner, secure": ("the training: each model", "the trained model"),
    "FederationTuner, examples": (
        f"{READS}how far apart the trained models",
        "the training: each model update",
        "the trained model",
    ),
    "FederationTuner, examples, secure": (
        "the training: each model",
        "the trained model",
    ),
}
TUNED = ("the model update of each round", "num-examples of each reply")
EXACT = {
    "FederationTuner": TUNED,
    "FederationTuner, secure": TUNED,
    "FederationTuner, examples": (*TUNED, "the number of the site's validation"),
    "FederationTuner, examples, secure": (*TUNED, "the number of the site's"),
    "FedGOUCB": ("with each reply the number of the site's evaluations",),
}
LEDGER = "with each reply the number of the study's charges in the site's own ledger"
SCORES = "sum over validation examples of the scores of"
MESSAGE = {
    "FedVote": "message with what the site believes",
    "FedVote, secure": "masked message",
    "FedWarmStart": "message with what the site believes",
    "FedUCB": "sums of the site's actions and rewards, with its own noise",
    "FedUCB, secure": "masked sums",
    "FedGOUCB": "sums of the site's actions and rewards, with its own noise",
    "FederationTuner": "ballot on 6 trials",
    "FederationTuner, secure": "masked ballot on 6 trials",
    "FederationTuner, examples": f"{SCORES} 6 trials",
    "FederationTuner, examples, secure": f"masked {SCORES} 6 trials",
}


class Begins(str):
    """A text that is equal to all that begin with it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other.startswith(str(self))

    __hash__ = str.__hash__


class Watched:
    """A study that was played, and the replies of its site 0 on the wire."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.sizes = name, Counter[int]()
        self.metrics, self.counts = set[str](), set[int]()
        send = InProcessGrid.send_and_receive

        def watched(grid: Any, messages: Any, *, timeout: Any = None) -> Any:
            replies = [*send(grid, [*messages], timeout=timeout)]
            first = min((one.metadata.src_node_id for one in replies), default=0)
            for one in replies:
                if one.metadata.src_node_id == first and one.has_content():
                    records = one.content.array_records.values()
                    for array in (a for record in records for a in record.values()):
                        self.sizes[array.numpy().nbytes] += 1
                    for metrics in one.content.metric_records.values():
                        self.metrics |= {*metrics}
                    for header in one.content.config_records.values():
                        fields = json.loads(str(header.get("fields", "{}")))
                        self.counts.add(fields.get("num_examples", 0))
            return replies

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(InProcessGrid, "send_and_receive", watched)
            self.played: Played = play(name, folder)


class Record:
    """A file, as sqlite3 reads it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        connection = sqlite3.connect(file)
        pairs = connection.execute("SELECT name, value FROM identity")
        self.identity = {name: json.loads(value) for name, value in pairs}
        # Which version has made a file does not belong to what it is of.
        self.identity.pop("flwr_fbo")
        self.rows = [
            (number, json.loads(facts), np.load(io.BytesIO(vectors)), committed)
            for number, facts, vectors, committed in connection.execute(
                "SELECT iteration, facts, vectors, committed FROM ledger"
            )
        ]
        self.state = {}
        for name, value in connection.execute("SELECT name, value FROM state"):
            array = np.load(io.BytesIO(value))
            is_text = array.dtype.kind == "U"
            self.state[name] = json.loads(str(array)) if is_text else array
        connection.close()

    @property
    def facts(self) -> list[dict[str, Any]]:
        return [facts for _, facts, _, _ in self.rows]

    @property
    def times(self) -> dict[str, str]:
        seconds = [committed for _, _, _, committed in self.rows]
        first, last = (
            datetime.fromtimestamp(at).isoformat(" ", "seconds")
            for at in (min(seconds), max(seconds))
        )
        return {"first": first, "last": last}

    def about(self) -> dict[str, Any]:
        rows = [
            [number, facts, hashlib.sha256(vectors.tobytes()).hexdigest(), committed]
            for number, facts, vectors, committed in self.rows
        ]
        text = json.dumps([self.identity, rows], sort_keys=True)
        return {
            "file": self.file.name,
            "kind": self.identity["kind"],
            "releases": len(self.rows),
            "mode": "0600",
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        }


def curve(epsilon: float, mu: float) -> float:
    """Delta of a Gaussian mechanism: Balle & Wang (2018)."""
    first = norm.cdf(mu / 2 - epsilon / mu)
    return float(first - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)))


def epsilon_at(delta: float, mu: float) -> float:
    return float(brentq(lambda e: curve(e, mu) - delta, 0, 1e6, xtol=1e-12))


def mu_at(epsilon: float, delta: float) -> float:
    return float(brentq(lambda mu: curve(epsilon, mu) - delta, 1e-3, 20, xtol=1e-12))


@pytest.fixture(scope="module", params=SIX)
def watched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Watched:
    return Watched(request.param, tmp_path_factory.mktemp("stated"))


def told(*arguments: object) -> Any:
    result = invoke("statement", *map(str, arguments), "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def leaves(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values of nested ones, and empty ones, by where they are."""
    if isinstance(values, dict) and values:
        for name, value in values.items():
            yield from leaves(value, f"{path}/{name}")
    elif isinstance(values, list) and values:
        for number, value in enumerate(values):
            yield from leaves(value, f"{path}/{number}")
    else:
        yield path, values


def assert_same(found: Any, expected: Any) -> None:
    """Assert that each field is there, and no other; numbers to 1e-4 of them."""
    one, other = dict(leaves(found)), dict(leaves(expected))
    assert one.keys() == other.keys()
    for path, value in other.items():
        if isinstance(value, float):
            assert one[path] == pytest.approx(value, rel=1e-4), path
        else:
            assert value == one[path], (path, one[path], value)


def terms(name: str, mu: float, delta: float, trust: str | None) -> dict[str, Any]:
    unit = OF[name]
    other = epsilon_at(delta, 2 * mu) if unit == "client" else None
    return {
        "epsilon": epsilon_at(delta, mu),
        "epsilon_if_replaced": other,
        "delta": delta,
        "unit": unit,
        "adjacency": UNITS[unit],
        "trust": trust,
        "conditions": CONDITIONS.get(name, []),
    }


def claimed(
    name: str, mu: float, delta: float, releases: int, trust: str | None
) -> dict[str, Any]:
    loss = min(epsilon_at(delta, mu), math.log(9999))
    return {
        **terms(name, mu, delta, trust),
        "releases": releases,
        "mu": mu,
        "best_guess": float(norm.cdf(mu / 2)),
        "sure": math.exp(loss) / (1 + math.exp(loss)),
        "share_more_sure": float(norm.cdf((mu**2 / 2 - loss) / mu)),
        "profile": {f"{other:g}": epsilon_at(other, mu) for other in DELTAS},
    }


def of_patient(name: str, mu: float, delta: float) -> list[dict[str, Any]]:
    cases: list[tuple[int | None, int, float]]
    if OF[name] == "client":
        cases = [(None, number, 2 * number * mu) for number in (1, 2, 3)]
    else:
        cases = [(size, 1, size * mu) for size in (1, 2, 3, 10)]
    return [
        {
            "records": size,
            "hospitals": number,
            "epsilon": epsilon_at(delta, m),
            "delta": delta,
            "at_most": False,
            "best_guess": float(norm.cdf(m / 2)),
        }
        for size, number, m in cases
    ]


def totalled(name: str, mu: float, delta: float, charges: int) -> list[dict[str, Any]]:
    about = {"of": "of all studies together", "releases": charges}
    return [{**about, **terms(name, mu, delta, None)}]


def common(name: str, trust: str | None) -> dict[str, Any]:
    covered = (*NOT_COVERED[name], *EVERYWHERE)
    return {
        "strategy": name.split(",")[0],
        "private": True,
        "against": AGAINST[trust],
        "trust_on_record": trust is not None,
        "groups": [GROUP] if trust == "sums" else [],
        "roster": "none pinned" if trust == "sums" else "",
        "noise": "from the operating system's entropy",
        "exact": [*map(Begins, (*EXACT.get(name, ()), LEDGER))],
        "not_covered": [*map(Begins, covered)],
    }


def around(of: str, folder: Path, is_versioned: bool) -> dict[str, Any]:
    return {
        "of": of,
        "folder": str(folder),
        "conditions": {
            "records written by flwr_fbo": "0.1.0" if is_versioned else "not on record",
            "statement written by flwr_fbo": "0.1.0",
            "flwr": Begins("1."),
            "OpenDP": Begins("0."),
            "Python": Begins("3."),
            "code of the app": "not on record",
            "list of reviewed apps": Begins("not on record"),
            "limits in force": Begins("not on record"),
            "authenticated SuperNodes": "not on record",
        },
        "audit": "none on record",
        "to_fill_in": dict.fromkeys(
            (
                "controller",
                "processor",
                "contact",
                "purpose",
                "legal basis",
                "retention of the records",
            ),
            "",
        ),
    }


def server_charge(name: str, record: Record) -> tuple[float, float, int, int]:
    """Return mu of a site's releases, delta, their number, and that of the charges."""
    facts, identity = record.facts, record.identity
    if OF[name] == "example" and "settings" in identity:
        settings = identity["settings"]
        about = settings.get("releases") or settings["privacy"]
        mu = mu_at(about["epsilon"], about["delta"])
        return mu, about["delta"], len(facts), 1
    noises = [one["noise_multiplier"] for one in facts]
    if identity.get("parallel"):
        noises = noises[:1]
    delta = identity["delta"] if "delta" in identity else identity["privacy"]["delta"]
    mu = math.sqrt(sum(1 / z**2 for z in noises))
    return mu, delta, len(noises), len(noises)


def sent_by(name: str, watched: Watched, on_record: bool) -> list[dict[str, Any]]:
    """Return what site 0 has sent under the noise, by the wire."""
    what: str
    what, sizes = Begins(MESSAGE[name]), watched.sizes
    if name.startswith("FederationTuner"):
        # Beside models, of 24 bytes; masked numbers are as long as the sum needs.
        size = None if name.endswith("secure") else 48
        assert size is None or sizes[size] == 1
        if not on_record:
            ballot = "ballot on" if OF[name] == "client" else SCORES
            what, size = f"{ballot} the trials of a rung", None
        return [{"what": what, "times": 1, "bytes": size}]
    if name.endswith("secure"):
        size = 1536 if name.startswith("FedVote") else 60
        return [{"what": what, "times": sizes[size], "bytes": size}]
    return [
        {"what": what, "times": times, "bytes": size}
        for size, times in sorted(sizes.items())
    ]


def test_each_field_of_a_server_follows_from_its_record(watched: Watched) -> None:
    name, folder = watched.name, watched.played.server
    [file] = folder.glob("*.sqlite")
    record = Record(file)
    mu, delta, releases, charges = server_charge(name, record)
    trust = TRUST[name]
    course: dict[str, Any] = {"rounds": None}
    if "progress" in record.state:
        stored = record.state["progress"]["study"]
        rounds = [s for n, s in record.state.items() if n.startswith("progress-round")]
        answered = [one["answered"] for one in rounds]
        course["rounds"] = {
            "done": len(rounds),
            "fewest": min(answered),
            "most": max(answered),
        }
        study_id = stored["study_id"]
    else:
        study_id = record.facts[0]["study_id"]
    site = Record(watched.played.sites[0] / "spending.sqlite").facts[0]
    assert site["study_id"] == study_id
    study = {
        **common(name, trust),
        **course,
        **record.times,
        "kind": site["study_kind"],
        "study_id": study_id,
        "agents": record.identity["num_agents"],
        "senders": 3 if name == "FedWarmStart" else None,
        "claim": claimed(name, mu, delta, releases, trust),
        "patient": of_patient(name, mu, delta),
        "sent": sent_by(name, watched, on_record=True),
    }
    expected = {
        **around("a study's server", folder, is_versioned=True),
        "studies": [study],
        "totals": totalled(name, mu, delta, charges),
        "forecast": [
            {
                "more": more,
                "totals": totalled(
                    name, mu * math.sqrt(1 + more), delta, charges * (1 + more)
                ),
            }
            for more in (1, 2)
        ],
        "records": [record.about()],
    }
    assert_same(told(folder, "--forecast", 2), expected)


def test_each_field_of_a_site_follows_from_its_ledger(watched: Watched) -> None:
    name, folder = watched.name, watched.played.sites[0]
    ledger = Record(folder / "spending.sqlite")
    facts = ledger.facts
    mu = math.sqrt(sum(n / z**2 for z, q, n in (one["charge"] for one in facts)))
    assert all(one["charge"][1] == 1 for one in facts)
    delta = facts[0]["delta"]
    kind, study_id = facts[0]["study_kind"], facts[0]["study_id"]
    journals = [
        Record(path)
        for path in folder.glob(f"*-{study_id}*.sqlite")
        if not path.name.startswith("sums-")
    ]
    is_kept = len(journals) == 1
    trust = TRUST[name] if is_kept else None
    own = journals[0].facts if is_kept else []
    about = common(name, trust)
    if not is_kept:
        about["not_covered"] = [
            one for one in about["not_covered"] if not one.startswith(READS)
        ]
        about["noise"] = "not on record"
    study = {
        **about,
        **ledger.times,
        "kind": kind,
        "study_id": study_id,
        "agents": journals[0].identity.get("num_agents") if is_kept else None,
        "senders": 3 if name == "FedWarmStart" else None,
        "unprotected_replies": 0,
        "claim": claimed(name, mu, delta, len(facts), trust),
        "patient": of_patient(name, mu, delta),
        "sent": sent_by(name, watched, on_record=is_kept),
        "server_key": facts[0].get("server", "not on record"),
    }
    expected = {
        **around("a site", folder, is_versioned=any("flwr_fbo" in one for one in own)),
        "studies": [study],
        "totals": totalled(name, mu, delta, len(facts)),
        "forecast": [],
        "records": [ledger.about(), *(one.about() for one in journals)],
    }
    assert_same(told(folder, "--forecast", 0), expected)


def test_what_is_said_to_leave_exactly_does(watched: Watched) -> None:
    seen = watched.metrics
    if watched.name.startswith("FederationTuner"):
        assert "num-examples" in seen
        assert watched.sizes[24] > 0  # a model
        # With what a client's ballot counts, where it protects an example.
        assert (max(watched.counts) > 0) == ("examples" in watched.name)
    else:
        assert "charges" in seen
    assert ("num-evaluations" in seen) == (watched.name == "FedGOUCB")


def test_a_patient_may_have_records_at_several_hospitals(watched: Watched) -> None:
    site = watched.played.sites[0]
    facts = Record(site / "spending.sqlite").facts
    mu = math.sqrt(sum(1 / one["charge"][0] ** 2 for one in facts))
    delta = facts[0]["delta"]
    group = "--records-per-patient", 4, "--hospitals-per-patient", 2
    last = told(site, *group)["studies"][0]["patient"][-1]
    is_client = OF[watched.name] == "client"
    steps = 2 * 2 if is_client else 4 * 2
    assert last["records"] == (None if is_client else 4)
    assert last["hospitals"] == 2
    assert last["epsilon"] == pytest.approx(epsilon_at(delta, steps * mu), rel=1e-4)


def test_the_page_and_the_text_say_what_the_json_does(
    watched: Watched, tmp_path: Path
) -> None:
    folder, file = watched.played.server, tmp_path / "statement.html"
    result = invoke("statement", str(folder), "--html", str(file))
    assert result.output == f"Statement: {file}\n"
    page = file.read_text(encoding="utf-8")
    assert_self_contained(page)
    text = CliRunner().invoke(app, ["statement", str(folder)], env=WIDE).output
    assert max(map(len, text.splitlines())) <= 100
    named = ("Claim", "For one patient", "In plain words", "Against whom")
    rest = ("What left each site", "What is not covered", "Totals", "Conditions")
    heads = [*named, *rest, "Evidence", "To be filled in"]
    assert headings_of(page) == heads
    assert [line for line in text.splitlines() if line in heads] == heads
    values = told(folder)
    [study] = values["studies"]
    words = " ".join(" ".join(part) for _, _, part in Elements(page).found)
    claim = study["claim"]
    for shown in (
        f"epsilon {claim['epsilon']:.4g} per {claim['unit']} (",
        f"{100 * claim['best_guess']:.1f} times in a hundred",
        f"{100 * claim['share_more_sure']:.2g} % of such studies",
        study["against"],
        values["records"][0]["sha256"],
        *study["not_covered"],
        *study["exact"],
        *(f"epsilon {p['epsilon']:.4g} per patient (" for p in study["patient"]),
        *(f"{one['totals'][0]['epsilon']:.4g}" for one in values["forecast"]),
    ):
        assert shown in " ".join(words.split())
        assert shown in " ".join(text.split())


def test_a_study_with_sampling_has_no_mu(tmp_path: Path) -> None:
    played = play("DPFTSDE", tmp_path)
    for folder in (played.server, played.sites[0]):
        [study] = told(folder)["studies"]
        claim = study["claim"]
        rows = Record(played.server / "server.sqlite").facts
        accountant = PLDAccountant()
        z = rows[0]["noise_multiplier"]
        q = rows[0]["sample_size"] / rows[0]["population_size"]
        event = PoissonSampledDpEvent(q, GaussianDpEvent(z))
        accountant.compose(SelfComposedDpEvent(event, len(rows)))
        assert claim["mu"] is None
        assert claim["share_more_sure"] is None
        for delta, epsilon in claim["profile"].items():
            exact = accountant.get_epsilon(float(delta))
            assert epsilon == pytest.approx(exact, rel=5e-3)
        guess = (1 + accountant.get_delta(0.0)) / 2
        assert claim["best_guess"] == pytest.approx(guess, rel=5e-3)
        # A site's ledger counts a message that is replaced without amplification.
        delta, mu = claim["delta"], 2 * math.sqrt(len(rows)) / z
        other = epsilon_at(delta, mu)
        if folder == played.server:
            group, replaced = (q, z, len(rows)), NeighboringRelation.REPLACE_ONE
            other = losses(group, replaced).get_epsilon(delta)
        assert claim["epsilon_if_replaced"] == pytest.approx(other, rel=5e-3)
        assert study["patient"][0]["epsilon"] == claim["epsilon_if_replaced"]
        assert study["patient"][0]["best_guess"] is None
        assert all(one["at_most"] for one in study["patient"])


Group = tuple[float, float, int]


def losses(group: Group, relation: NeighboringRelation, mu: float = 0) -> PLDAccountant:
    """Return dp-accounting's losses of steps, and of one Gaussian mechanism."""
    q, z, steps = group
    accountant = PLDAccountant(relation, value_discretization_interval=1e-3)
    event = PoissonSampledDpEvent(q, GaussianDpEvent(z))
    accountant.compose(SelfComposedDpEvent(event, steps))
    if mu:
        # That of contributions which are replaced is twice as far from each other.
        far = 2 if relation == NeighboringRelation.REPLACE_ONE else 1
        accountant.compose(GaussianDpEvent(far / mu))
    return accountant


@cache
def gaussian_of(group: Group, relation: NeighboringRelation, share: float) -> float:
    """Return the least mu whose curve and so much delta are above that of steps."""
    found, points = losses(group, relation), np.arange(0, 20, 0.1)
    excess = [float(found.get_delta(x)) - share for x in points]
    above = [(x, d) for x, d in zip(points, excess, strict=True) if d > 1e-12]
    return max(
        float(brentq(lambda mu: curve(at, mu) - d, 1e-3, 30, xtol=1e-6))  # noqa: B023
        for at, d in above
    )


@cache
def filtered_alone(
    group: Group, delta: float, relation: NeighboringRelation, mu: float = 0
) -> float:
    return float(losses(group, relation, mu).get_epsilon(delta))


def filtered(
    groups: list[Group],
    delta: float,
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
) -> float:
    """Return epsilon of plans by the filter's rule: see `flwr_fbo.privacy.filters`."""
    first, *others = groups
    if not others:
        return filtered_alone(first, delta, relation)
    reserved, squares = delta / 20, 0.0
    for number, group in enumerate(others, 1):
        share = reserved / (number * (number + 1))
        squares += gaussian_of(group, relation, share) ** 2
    return filtered_alone(first, delta - reserved, relation, math.sqrt(squares))


def assert_trained(
    study: dict[str, Any], groups: list[Group], delta: float, at_most: int
) -> None:
    """Assert what is said of plans that a site was charged for, and of nothing else."""
    claim = study["claim"]
    replace = NeighboringRelation.REPLACE_ONE
    assert claim["epsilon"] == pytest.approx(filtered(groups, delta), rel=5e-3)
    other = filtered(groups, delta, replace)
    assert claim["epsilon_if_replaced"] == pytest.approx(other, rel=5e-3)
    for at, epsilon in claim["profile"].items():
        assert epsilon == pytest.approx(filtered(groups, float(at)), rel=5e-3)
    # An observer of all at once, who did not choose one after another, is no surer.
    accountant = PLDAccountant()
    for q, z, steps in groups:
        event = PoissonSampledDpEvent(q, GaussianDpEvent(z))
        accountant.compose(SelfComposedDpEvent(event, steps))
    guess = (1 + accountant.get_delta(0.0)) / 2
    if len(groups) == 1:
        assert claim["best_guess"] == pytest.approx(guess, rel=5e-3)
    assert 0.999 * guess < claim["best_guess"] < 1.25 * guess
    assert claim["mu"] is None
    assert (claim["unit"], claim["adjacency"]) == ("example", "zeroed")
    assert claim["trust"] == "local"
    assert claim["releases"] == at_most
    mu = 2 * math.sqrt(sum(steps / z**2 for _, z, steps in groups))
    patient = [claim["epsilon_if_replaced"]]
    patient += [epsilon_at(delta, size * mu) for size in (2, 3, 10)]
    found = [one["epsilon"] for one in study["patient"]]
    assert found == pytest.approx(patient, rel=1e-3)
    assert all(one["at_most"] for one in study["patient"])
    assert study["strategy"] == "DP-SGD of the site's own app"
    assert study["against"] == AGAINST["local"]
    assert study["exact"] == [Begins("num-examples and metrics in the app's replies")]
    assert study["not_covered"] == [
        Begins("what the app trains and does not charge"),
        Begins("steps that are not as charged"),
        *map(Begins, EVERYWHERE[:3]),
    ]


@pytest.mark.parametrize(
    ("name", "groups", "rounds"),
    [
        ("DPSGD, planned", [(0.1, 1.0, 50)], 3),
        ("DPSGD, beyond its plan", [(0.1, 1.0, n) for n in (50, 10, 10)], 7),
        ("DPSGD", [(0.1, 1.0, 10)] * 6, 6),
    ],
)
def test_a_charged_training_costs_what_its_plans_do(
    name: str, groups: list[Group], rounds: int, tmp_path: Path
) -> None:
    site = play(name, tmp_path).sites[0]
    values = told(site)
    [study] = values["studies"]
    assert_trained(study, groups, 1e-5, rounds)
    assert study["sent"] == [
        {"what": Begins("model of a round"), "times": rounds, "bytes": None}
    ]
    claim = study["claim"]
    [shown] = json.loads(invoke("ledger", "show", str(site), "--json").output)
    for total in (*values["totals"], *shown["spent"]):
        for field in ("epsilon", "epsilon_if_replaced", "delta", "conditions"):
            assert total[field] == claim[field]
    text = " ".join(invoke("statement", str(site)).output.split())
    assert f"at most epsilon {study['patient'][1]['epsilon']:.4g} per patient" in text
    assert "not on record" not in text[text.index("Against whom") :][:100]


def test_a_tuner_beside_charged_trainings(tmp_path: Path) -> None:
    site = play("FederationTuner, charged", tmp_path).sites[0]
    charges = Record(site / "spending.sqlite").facts
    trained = [one for one in charges if one["study_kind"] == "training"]
    assert len(trained) > 1
    values = told(site)
    by_kind = {one["kind"]: one for one in values["studies"]}
    groups = [(0.1, 1.0, 10)] * len(trained)
    delta = by_kind["training"]["claim"]["delta"]
    assert_trained(by_kind["training"], groups, delta, len(trained))
    tuned = by_kind["federation-tuner"]
    assert tuned["exact"][0].startswith("the model update of each round of training th")
    assert "has not charged" in tuned["exact"][0]
    assert tuned["not_covered"][:2] == [
        Begins("the training: what the app charges of it"),
        Begins("the trained model, which all sites get: no more"),
    ]
    totals = {one["of"]: one for one in values["totals"]}
    of_training = totals["of training"]
    claim = by_kind["training"]["claim"]
    assert of_training["epsilon"] == claim["epsilon"]
    assert of_training["epsilon_if_replaced"] == claim["epsilon_if_replaced"]
    [shown] = json.loads(invoke("ledger", "show", str(site), "--json").output)
    for one in shown["spent"]:
        assert one["epsilon"] == totals[one["of"]]["epsilon"]
    text = " ".join(invoke("statement", str(site)).output.split())
    assert "Each total is for one unit; what protects another one is converted" in text


@pytest.mark.parametrize("name", ["FTS", "FedGOUCB, open", "DecentralizedFedUCB"])
def test_what_is_not_known_is_not_claimed(name: str, tmp_path: Path) -> None:
    played = play(name, tmp_path)
    values = told(played.server)
    [study] = values["studies"]
    assert study["strategy"] == name.removesuffix(", open")
    if name == "DecentralizedFedUCB":
        assert study["claim"]["epsilon"] == pytest.approx(4)
        assert study["sent"][0]["bytes"] is None
    else:
        assert study["claim"] == {"epsilon": None}
        assert study["patient"] == []
        text = invoke("statement", str(played.server)).output
        assert "Nothing is claimed." in text
        assert "epsilon infinite per " in text


def test_a_reply_without_noise_ends_a_sites_claim(tmp_path: Path) -> None:
    played = play("FedVote, metrics", tmp_path)
    [study] = told(played.sites[0])["studies"]
    assert study["private"] is False
    assert study["unprotected_replies"] == 1
    assert study["claim"] == {"epsilon": None}
    text = invoke("statement", str(played.sites[0])).output
    assert "NOT PRIVATE" in text
    assert "without noise: 1 reply" in text


def test_an_audit_in_the_folder_is_quoted(tmp_path: Path) -> None:
    played = play("FedWarmStart", tmp_path)
    plan = "--draws", "1000", "--seed", "0", "--json"
    audit = invoke("audit", "--study", "FedWarmStart", *plan)
    (played.server / "audit.json").write_text(audit.stdout)
    found = told(played.server)["audit"]
    assert len(found) > 0
    text = " ".join(invoke("statement", str(played.server)).output.split())
    for one in found:
        assert f"{one['epsilon_lower']:.4g}" in text
        assert one["verdict"] in text
    for text in ("{}x", "[{}]", "3"):
        (played.server / "audit.json").write_text(text)
        result = invoke("statement", str(played.server))
        assert "audit --json" in one_line_error(result)


@pytest.mark.parametrize(
    "line",
    [
        "FedVote --agents 20 --releases 2 --epsilon 2 --delta 1e-3",
        "FedWarmStart --agents 30 --epsilon 2 --delta 1e-3",
        "FederationTuner --agents 20 --releases 2 --epsilon 2 --delta 1e-3",
        "FedUCB --agents 50 --releases 10 --trials 500 --dimensions 8 --epsilon 4 "
        "--delta 1e-5",
    ],
)
def test_a_plan_has_a_statement_too(line: str, tmp_path: Path) -> None:
    name, file = line.split()[0], tmp_path / "plan.json"
    file.write_text(invoke("privacy", "--strategy", *line.split(), "--json").output)
    values = told(file)
    assert values["of"] == "a plan"
    assert len(values["studies"]) == (3 if name == "FedUCB" else 1)
    delta, epsilon = (1e-5, 4) if name == "FedUCB" else (1e-3, 2)
    mu = mu_at(epsilon, delta)
    for study in values["studies"]:
        assert study["strategy"].split(",")[0] == name
        claim = study["claim"]
        assert claim["epsilon"] == pytest.approx(epsilon, rel=1e-3)
        assert claim["mu"] == pytest.approx(mu, rel=1e-3)
        assert claim["best_guess"] == pytest.approx(norm.cdf(mu / 2), rel=1e-3)
        first = study["patient"][0]["epsilon"]
        steps = 1 if name == "FedUCB" else 2
        assert first == pytest.approx(epsilon_at(delta, steps * mu), rel=2e-3)
        if study["claim"]["trust"] == "server":
            assert study["not_covered"][0].startswith(READS)
        if name == "FederationTuner":
            assert study["not_covered"][1:3] == [
                Begins("the training: each model update"),
                "the trained model, which all sites get",
            ]
    text = invoke("statement", str(file)).output
    assert "Nothing has left a site yet." in text


def test_a_plan_with_a_training_says_what_both_spend(tmp_path: Path) -> None:
    line = (
        "FederationTuner --agents 20 --releases 2 --epsilon 0.5 --delta 1e-5 "
        "--protects example --total-epsilon 8 --training-q 0.05 --training-steps 540"
    )
    file = tmp_path / "plan.json"
    file.write_text(invoke("privacy", "--strategy", *line.split(), "--json").output)
    training = json.loads(file.read_text())["with_training"]
    values = told(file)
    assert [one["of"] for one in values["totals"]] == [
        "of the training",
        "of the choice",
        "of both together",
    ]
    for one, part in zip(
        values["totals"], ("training", "choice", "together"), strict=True
    ):
        assert one == {"of": one["of"], "releases": 0, **training[part]}
    choice, trained = values["studies"]
    assert choice["claim"]["epsilon"] == pytest.approx(0.5, rel=1e-3)
    assert choice["not_covered"][:3] == [
        Begins(f"{READS}how far apart the trained models"),
        Begins("the training: what the app charges of it"),
        Begins("the trained model"),
    ]
    group = training["sampling_probability"], training["noise_multiplier"], 540
    assert_trained(trained, [group], 1e-5, at_most=540)
    text = " ".join(invoke("statement", str(file)).output.split())
    for one in values["totals"]:
        assert f"epsilon {one['epsilon']:.4g} per example (with or without" in text


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--records-per-patient", "0"), "--records-per-patient=0 is not allowed"),
        (("--hospitals-per-patient", "0"), "--hospitals-per-patient=0 is not"),
        (("--forecast", "61"), "--forecast=61 is not allowed"),
        (("--delta", "0"), "--delta=0.0 is not allowed"),
        (("--html", "no/such/folder.html"), "a file in a folder that exists"),
        ((), "There is no record of a server and no ledger in"),
    ],
)
def test_what_is_wrong_is_one_line(
    options: tuple[str, ...], error: str, tmp_path: Path
) -> None:
    assert error in one_line_error(invoke("statement", str(tmp_path), *options))


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text("[]")
    assert "privacy --json" in one_line_error(invoke("statement", str(file)))


def test_all_studies_are_played() -> None:
    assert {*SIX} < {*STUDIES}
