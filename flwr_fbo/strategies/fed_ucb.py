"""FedUCB (Dubey & Pentland, NeurIPS 2020) as a Flower strategy."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Message

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import takes_plain
from flwr_fbo._common.validation import require, require_instance
from flwr_fbo._compat import reply_metrics
from flwr_fbo.bandits.fed_ucb.block_server import BlockServer
from flwr_fbo.bandits.fed_ucb.server import FedUCBServer
from flwr_fbo.bandits.kind import LINEAR_SERVER
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.bandits.linear.study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.strategies.linear_bandit_strategy import (
    LinearBanditStrategy,
    TrialSchedule,
    check_trigger,
)
from flwr_fbo.strategies.secure_rounds import SecureRounds
from flwr_fbo.study.server import Step

_log = logging.getLogger("flwr.fbo")

# Trials in a block of a site: with more of them the sum would wrap around.
_MOST_TRIALS, _MOST_OF_ALL = 2**20, 2**30


class FedUCB(LinearBanditStrategy):
    """Federated linear bandits whose agents pool private sums.

    Give exactly one of ``interval`` and ``schedule``. Real sites play at any time
    through `LinearBanditPolicy` and synchronise by the clock: give ``interval``. Agents
    with an environment, in experiments, play as many trials as ``schedule`` says.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo import FedUCB, InProcessGrid, linear_bandit_app
    >>> from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
    >>> class Ward:
    ...     def contexts(self, t):
    ...         return np.eye(3)  # the actions of trial t
    ...     def reward(self, x):
    ...         return float(x @ [0.2, 0.3, 0.8])
    >>> app = linear_bandit_app(make_environment=lambda context: Ward())
    >>> releases = ContinualSettings(
    ...     num_releases=2, dimension=3, epsilon=4.0, delta=1e-5
    ... )
    >>> settings = LinearUCBSettings(releases, local_data="own")
    >>> strategy = FedUCB(settings, num_agents=4, schedule=[10, 20])
    >>> result = strategy.start(InProcessGrid(app, num_nodes=4))
    >>> result.privacy_spent.epsilon, result.estimate.shape
    (4.0, (3,))

    Parameters
    ----------
    settings : LinearUCBSettings
        Settings of all agents; ``settings.releases`` has epsilon, delta and the number
        of synchronisations.
    num_agents : int
        Number M >= 1 of agents, the slots of the study.
    interval : float, optional
        Seconds before each synchronisation, from 0 to ten years. The first round only
        enrols the sites. After it, rounds that collect releases and rounds that send
        the total alternate: ``2 n + 1`` rounds have n synchronisations. With
        ``num_releases=None`` a study that has ended goes on with more rounds: call
        `start` with the same ``folder`` and a larger ``num_rounds``.
    schedule : sequence of int, or DeterminantTrigger, optional
        Numbers of trials after which agents synchronise, increasing. There are ``n +
        1`` rounds for n synchronisations; the last one plays on up to ``num_trials``.
        Or the paper's trigger, with one trial a round: *not private*, whatever the
        noise.
    num_trials : int, optional
        Number T of trials of an agent, at least those before the last synchronisation,
        which is the default. Only with a list as ``schedule``.
    noise_seed : int, optional
        Seed, >= 0, of the agents' noise, *for experiments only*: the study is then not
        private. By default the operating system draws the noise.
    aggregation : SecureAggregation, optional
        How the sites sum what their new trials add, so that everybody learns the total
        with the noise of one release, and nobody a site's own sum. It needs
        ``local_data="released"`` and ``mechanism="blocks"``. By default each site adds
        the whole noise to its own sums.
    allow_large_delta : bool
        Whether delta may be 0.01 and more where the noise is real: for experiments.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.

    Notes
    -----
    *Formal guarantees*: those of `ContinualRelease`, at each agent: (epsilon,
    delta)-DP for one trial replaced by another, against all that ever leaves the site,
    the server and the other sites included; against a server that would lie about
    epsilon, too, where the site says what it takes part in (`Limits`). With
    ``local_data="own"`` or ``"raw"`` only for a change of one trial that leaves all
    other rows as they were; with a trigger none. An agent whose journal is lost is
    refused: it could draw its noise again. So it could with an older copy of its
    journal, if the last release had been made and had not come here: never go on with
    an older copy, of a backup, a snapshot or a cloned machine. Without
    ``Host(keys=...)`` whoever is first to name a slot, with a journal of its own,
    locks its true agent out.

    With ``aggregation``: those of `flwr_fbo.secure.block_noise`, for one trial and all
    that its site does later because of it, together with those of `Misfit`, by which a
    site leaves. They hold against the server with at most ``colluding`` sites, and
    without a roster only if it follows the protocol. A release with too few sites
    waits: nothing is unmasked.
    """

    server: FedUCBServer | BlockServer
    record_kind = LINEAR_SERVER

    @takes_plain
    def __init__(
        self,
        settings: LinearUCBSettings,
        num_agents: int,
        *,
        interval: float | None = None,
        schedule: TrialSchedule | None = None,
        num_trials: int | None = None,
        noise_seed: int | None = None,
        aggregation: SecureAggregation | None = None,
        allow_large_delta: bool = False,
    ) -> None:
        trigger = check_trigger(settings, schedule)
        study = LinearBanditStudy(settings, num_agents, trigger, noise_seed)
        server: FedUCBServer | BlockServer = FedUCBServer(study)
        sums = SecureRounds()
        if aggregation is not None:
            require_instance("aggregation", aggregation, SecureAggregation)
            study, sums = summed_study(study, aggregation)
            server = BlockServer(study)
        super().__init__(
            server,
            study,
            interval=interval,
            schedule=schedule,
            num_trials=num_trials,
            allow_large_delta=allow_large_delta,
        )
        self._sums = sums

    def default_rounds(self) -> int:
        """Return as many as all planned synchronisations take.

        Raises
        ------
        ValueError
            If their number is not known in advance.
        """
        if self._times:
            return len(self._times) + 1
        planned = self.study.settings.releases.num_releases
        require(self.study.trigger is None, "num_rounds", None, "given, with a trigger")
        is_known = planned is not None
        require(is_known, "num_rounds", None, "given, where num_releases is None")
        return 2 * (planned or 0) + 1

    def plan(self, horizon: int) -> None:
        """Fix after which iterations agents are asked for a release.

        Parameters
        ----------
        horizon : int
            T >= 1, the last iteration.
        """
        planned = self.study.settings.releases.max_releases
        if self._times:
            wanted = len(self._times)
            require(horizon == wanted, "num_rounds", horizon + 1, f"{wanted + 1}")
            self.server.iterations = range(wanted)
        elif self.study.trigger is None:
            rounds, most = horizon + 1, 2 * planned + 1
            enough = f"at most {most}, for {planned} releases"
            require(rounds <= most, "num_rounds", rounds, enough)
            used = "odd, or no agent would use the last release"
            require(rounds % 2 == 1, "num_rounds", rounds, used)
            self.server.iterations = range(1, horizon + 1, 2)
        if self._sums.collector is not None:
            self._sums.num_planned = len(self.server.iterations)

    def _is_again(self, step: Step) -> bool:
        """Return whether a step only tries a postponed release again."""
        return step.iteration not in self.server.iterations

    def _take(self, step: Step, answers: Mapping[int, Message]) -> None:
        """Hand the answers to the server half; or have the sites sum their blocks."""
        server, sums = self.server, self.study.secure
        if not isinstance(server, BlockServer) or sums is None:
            super()._take(step, answers)
            return
        if not step.release:
            return
        about = self.study, sums, step.release
        summed = self._sums.sum_up(*about, instruct=self._in_sums)
        if summed is not None:
            server.receive_sum(step, sums.row(step.release, 0, *summed))

    def _in_sums(self, slot: int) -> LinearBanditInstruction:
        """Return what the site of a slot is told in the exchanges of a secure sum."""
        return LinearBanditInstruction(
            phase="sum",
            study=self.study,
            slot=slot,
            journal=self._enrolment.journals.get(slot, 0),
            included=self.server.num_releases[slot],
            iteration=self._round.step.iteration,
        )

    def _fields_for(self, step: Step) -> dict[str, Any]:
        return {
            "send_release": step.release > 0,
            "num_trials": self._trials_after(step.iteration),
            "agents_in_total": sum(count > 0 for count in self.server.num_releases),
            "num_synchronisations": len(self.server.ledger),
        }

    def _trials_after(self, iteration: int) -> int:
        """Return how many trials agents have played after an iteration."""
        if self.study.trigger is not None:
            return iteration + 1 - bisect_right(self.server.iterations, iteration)
        if iteration < len(self._times):
            return self._times[iteration]
        return self._num_trials if self._times else 0

    def _take_wishes(self, step: Step, answers: Mapping[int, Message]) -> None:
        """Note whether an agent wants to synchronise, which it then does at once."""
        if self.study.trigger is None:
            return  # when is public, whatever an agent says
        wanted = [
            reply_metrics(answer.content).get("wants-synchronisation") == 1
            for answer in answers.values()
        ]
        if not any(wanted):
            return
        planned = self.study.settings.releases.max_releases
        if max(self.server.num_releases) < planned:
            following = step.iteration + 1
            self.server.iterations = [*self.server.iterations, following]
        else:
            _log.warning(
                "Agents request another synchronisation, but all %d planned releases "
                "are made. They continue without it.",
                planned,
            )

    def _estimate(self) -> FloatArray | None:
        total = self.server.vectors
        if total is None:
            return None
        confidence = Confidence.of(self.study.settings, self.study.num_agents)
        confidence = confidence.after(len(self.server.ledger))
        study = self.study
        # A lying agent can make it of no use: agents leave it aside, too.
        with suppress(np.linalg.LinAlgError):
            if study.settings.uses_blocks:
                from flwr_fbo.bandits.linear.blocks_belief import BlocksBelief

                totals, summed = self.server.arrays
                stds = study.block_stds(summed)
                most = int(summed.sum(axis=1).max())
                model = BlocksBelief(confidence, totals, stds, most).belief
                return model.ellipsoid.estimate
            return confidence.ellipsoid(total).estimate
        return None


def summed_study(
    study: LinearBanditStudy, aggregation: SecureAggregation
) -> tuple[LinearBanditStudy, SecureRounds]:
    """Return a study whose sites sum their blocks, and its sums.

    Raises
    ------
    ValueError
        If they cannot; the message names what to choose.
    """
    from flwr_fbo.bandits.linear.leaving_the_sums import summed_releases

    settings, agents = study.settings, study.num_agents
    scheduled = "a list, with aggregation: when to synchronise is public"
    require(study.trigger is None, "schedule", study.trigger, scheduled)
    released, blocks = "'released', with aggregation", "'blocks', with aggregation"
    local, mechanism = settings.local_data, settings.releases.mechanism
    require(local == "released", "local_data", local, released)
    require(mechanism == "blocks", "releases.mechanism", mechanism, blocks)
    rounds = SecureRounds(aggregation, [range(agents)])
    assert rounds.collector is not None
    most = min(_MOST_TRIALS, _MOST_OF_ALL // agents)
    sums = rounds.collector.block_sums(summed_releases(settings.releases), most)
    return replace(study, secure=sums), rounds
