"""Studies with secure aggregation, for tests: sites with keys, and a grid."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, UserConfig
from flwr.clientapp import ClientApp
from optuna.distributions import FloatDistribution

from flwr_fbo import (
    DPFTSDE,
    FedVote,
    FedWarmStart,
    InProcessGrid,
    Privacy,
    Seeds,
    tuning_app,
)
from flwr_fbo._compat import reply_arrays, reply_metrics
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.secure.integer_noise import IntegerNoise
from flwr_fbo.secure.roster import Roster, SigningKey
from flwr_fbo.secure.secure_release import SecureRelease
from flwr_fbo.secure.sum_settings import SecureSums
from flwr_fbo.tuning import DPFTSDESettings, FedVoteSettings
from flwr_fbo.tuning.fed_warm_start.settings import FedWarmStartSettings
from tests.support.grouped import hosted

N, NUM_FEATURES = 5, 16
SPACE = {"x": FloatDistribution(0.0, 1.0)}
PRIVACY = Privacy(noise_multiplier=1.0, release_after=range(1, 3))
_SIZES: dict[str, Any] = {"num_features": NUM_FEATURES, "num_candidates": 20}
# Four sites must agree, and one may be absent.
AGGREGATION = SecureAggregation(threshold=4, honest=4)


def make_objective(context: Context) -> Any:
    centre = 0.4 + 0.05 * int(context.node_config["partition-id"])
    return lambda trial: -((trial["x"] - centre) ** 2)


APP = tuning_app(make_objective)


@dataclass(frozen=True)
class Keys:
    """Key files and a roster in a folder, and node configs that name them."""

    folder: Path
    keys: dict[int, SigningKey]
    roster: Roster

    @property
    def roster_path(self) -> Path:
        return self.folder / "roster.json"

    def key_path(self, slot: int) -> Path:
        return self.folder / f"site-{slot}.key"

    def node_configs(self, **entries: Any) -> list[UserConfig]:
        about = [
            {"fbo-roster": str(self.roster_path), "fbo-key": str(self.key_path(slot))}
            for slot in self.keys
        ]
        configs = zip(node_configs(len(about), **entries), about, strict=True)
        return [{**config, **named} for config, named in configs]


Private = FedVote | FedWarmStart | DPFTSDE


def make_keys(folder: Path, num_sites: int = N) -> Keys:
    keys = {slot: SigningKey.draw() for slot in range(num_sites)}
    roster = Roster.draw({slot: key.public for slot, key in keys.items()})
    made = Keys(folder, keys, roster)
    roster.save(made.roster_path)
    for slot, key in keys.items():
        key.save(made.key_path(slot))
    return made


def node_configs(num_sites: int = N, **entries: Any) -> list[UserConfig]:
    return [
        {"partition-id": slot, "agent-id": slot, **entries} for slot in range(num_sites)
    ]


def fed_vote(**options: Any) -> FedVote:
    agent = FedVoteSettings(num_initial=2, **_SIZES)
    options = _defaults(PRIVACY, options)
    return hosted(FedVote, SPACE, "maximize", N, agent=agent, **options)


def dp_fts_de(**options: Any) -> DPFTSDE:
    agent = DPFTSDESettings(num_initial=2, num_sub_regions=2, **_SIZES)
    privacy = replace(PRIVACY, sampling_probability=1.0)
    options = _defaults(privacy, options)
    return hosted(DPFTSDE, SPACE, "maximize", N, agent=agent, **options)


def fed_warm_start(**options: Any) -> FedWarmStart:
    """Return a study of two cohorts, of three sites and two; two more follow."""
    agent = FedWarmStartSettings(share_after=2, num_led=2, **_SIZES)
    options = {"aggregation": SecureAggregation(), "cohorts": (3, 2), **options}
    privacy = Privacy(noise_multiplier=1.0)
    defaults = _defaults(privacy, options)
    return hosted(FedWarmStart, SPACE, "maximize", N + 2, agent=agent, **defaults)


def _defaults(privacy: Privacy, options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "privacy": privacy,
        "aggregation": AGGREGATION,
        "delta": 1e-3,
        "seeds": Seeds(study=1, features=2),
        "patience": 0.0,
        "max_empty_rounds": 100,
        **options,
    }


@dataclass
class Heard:
    """What one request was, and what the server got for it."""

    phase: str
    exchange: int
    slot: int
    config: dict[str, Any]
    replies: list[np.ndarray] = field(default_factory=list)
    refusal: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)


# Takes a request of the server; may change it, and returns whether it is delivered.
Tamper = Callable[[Heard, Message], bool]
# Takes what was heard of a site; returns whether it arrives.
Arrives = Callable[[Heard], bool]


class SumGrid(InProcessGrid):
    """A grid that notes all that is heard, and may lose or change it."""

    def __init__(
        self,
        configs: list[UserConfig],
        app: ClientApp = APP,
        tamper: Tamper = lambda heard, message: True,
        arrives: Arrives = lambda heard: True,
    ) -> None:
        super().__init__(app, len(configs), node_configs=configs)
        self.heard: list[Heard] = []
        self._tamper, self._arrives = tamper, arrives

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        asked = []
        for message in messages:
            config = dict(configs_of(message)[0])
            heard = Heard(
                str(config["fbo-phase"]),
                int(str(config["fbo-exchange"])),
                int(str(config["fbo-slot"])),
                config,
            )
            if self._tamper(heard, message):
                self.heard.append(heard)
                asked.append((heard, message))
        arrived = []
        sent = [message for _, message in asked]
        replies = super().send_and_receive(sent, timeout=timeout)
        for (heard, _), reply in zip(asked, replies, strict=True):
            if reply.has_error():
                heard.refusal = str(reply.error.reason)
            else:
                heard.replies = reply_arrays(reply.content)
                heard.metrics = dict(reply_metrics(reply.content))
            if self._arrives(heard):
                arrived.append(reply)
        return arrived

    def of(self, phase: str, exchange: int = 0) -> list[Heard]:
        """Return what was heard in an exchange of all sums."""
        return [h for h in self.heard if (h.phase, h.exchange) == (phase, exchange)]


def configs_of(message: Message) -> list[ConfigRecord]:
    """Return the records with an instruction: one for each client API."""
    records = message.content.config_records.values()
    return [record for record in records if "fbo-phase" in record]


def arrays_of(message: Message) -> list[ArrayRecord]:
    """Return the records with what comes along: one for each client API."""
    return list(message.content.array_records.values())


class Contributions:
    """What sites put into sums, over the sensitivity, by release and slot.

    Parameters
    ----------
    monkeypatch : pytest.MonkeyPatch
    noisy : bool
        Whether sites draw real noise; else their shares are zero.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, noisy: bool = False) -> None:
        self.given: dict[tuple[int, int], np.ndarray] = {}
        self.num_shares = 0
        contribution, draw = SecureRelease.contribution, IntegerNoise.draw_share

        def noted(
            release: SecureRelease, iteration: int, slot: int, message: np.ndarray
        ) -> np.ndarray:
            given = contribution(release, iteration, slot, message)
            known = self.given.setdefault((iteration, slot), given)
            np.testing.assert_array_equal(given, known)
            return given

        def share(noise: IntegerNoise) -> np.ndarray:
            self.num_shares += 1
            return draw(noise) if noisy else np.zeros(noise.length, np.int64)

        monkeypatch.setattr(SecureRelease, "contribution", noted)
        monkeypatch.setattr(IntegerNoise, "draw_share", share)

    def sum_of(self, strategy: Private, row: Any) -> np.ndarray:
        """Return what a release is without its noise."""
        release = strategy.server.release
        slots = row.facts["summed"]
        total = sum(self.given[row.iteration, slot] for slot in slots)
        factor = release.sensitivity(row.iteration)
        return (np.asarray(total) * factor).reshape(row.vectors.shape)

    def assert_right(self, strategy: Private) -> None:
        """Assert that each release is the sum, but for what rounding changed."""
        secure, release = strategy.study.secure, strategy.server.release
        assert isinstance(secure, SecureSums)
        for row in strategy.server.ledger:
            slots = row.facts["summed"]
            group = secure.groups[secure.group_of(slots[0])]
            assert set(slots) <= set(group.slots)
            assert len(slots) >= group.min_summed
            step = 1e-3 * len(slots) * release.sensitivity(row.iteration)
            error = row.vectors - self.sum_of(strategy, row)
            assert np.linalg.norm(error) <= step


def logged_errors(caplog: pytest.LogCaptureFixture) -> str:
    """Return what sites logged of their refusals, as one text."""
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    return "\n".join(record.getMessage() for record in errors)
