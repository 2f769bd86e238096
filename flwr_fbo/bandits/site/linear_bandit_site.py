"""A site of FedUCB: it synchronises the site's linear bandit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flwr_fbo._common.conversion import take_plain
from flwr_fbo.bandits.linear.study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)
from flwr_fbo.bandits.site.bandit_site import (
    BanditSite,
    MakeEnvironment,
    playing,
)
from flwr_fbo.bandits.site.environment import environment_in_time
from flwr_fbo.journal.journal import Journal
from flwr_fbo.secure import SumIdentity
from flwr_fbo.site.gate import Gate
from flwr_fbo.site.limits import Limits
from flwr_fbo.site.recorded_agent import older_copy
from flwr_fbo.site.site import Answer, Arrays, site_app, sum_request
from flwr_fbo.site.site_journal import configured_slot
from flwr_fbo.site.time_limit import CheckTime
from flwr_fbo.study.codec import StudyMismatchError

if TYPE_CHECKING:
    from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit


@dataclass(frozen=True)
class LinearBanditSite(BanditSite[LinearBanditInstruction, "RecordedBandit"]):
    """What a client brings to a study of FedUCB; see `linear_bandit_app`.

    The server writes the settings of a study, epsilon and all, and a site does its own
    noise by them. What it does not take part in, whatever the server says, is decided
    here.

    Raises
    ------
    ValueError
        If an argument is not allowed.
    """

    folder: str | Path | None = None
    make_environment: MakeEnvironment | None = None
    limits: Limits | None = None

    instruction_type = LinearBanditInstruction

    def __post_init__(self) -> None:
        take_plain(self)
        self.check_fields()

    @property
    def recorded(self) -> type[RecordedBandit]:
        """The type of the agent that it keeps; loaded when it is asked for."""
        from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit

        return RecordedBandit

    def check(self, context: Context, study: LinearBanditStudy, gate: Gate) -> None:
        """Raise unless the site takes part in such sums, and has a place for them.

        Raises
        ------
        RefusedError
            If sums are not made as the site wants.
        NodeConfigError
            If there is neither folder nor environment.
        """
        if study.secure is None:
            super().check(context, study, gate)
        else:
            slot = configured_slot(context)
            gate.check_sums(study.secure, study.promise, slot)
        self.check_place(context, "linear_bandit_app")

    def slot_of(self, context: Context, study: LinearBanditStudy) -> int:
        """Return the slot of the node config, else that of the site's key, or -1."""
        slot = super().slot_of(context, study)
        if slot >= 0 or study.secure is None:
            return slot
        return SumIdentity.of(context.node_config).slot

    def agent_in(
        self, journal: Journal, study: LinearBanditStudy, context: Context
    ) -> RecordedBandit:
        """Return the agent of a study's journal, with the site's key in secure sums."""
        if study.secure is None:
            return super().agent_in(journal, study, context)
        return self.recorded(journal, study, SumIdentity.of(context.node_config))

    def num_trials(
        self, agent: RecordedBandit, instruction: LinearBanditInstruction
    ) -> int:
        """Return how many trials are missing; none where the site plays by itself."""
        if self.make_environment is None or instruction.phase == "sum":
            return 0
        return instruction.num_trials - agent.num_trials

    def play(
        self,
        context: Context,
        agent: RecordedBandit,
        instruction: LinearBanditInstruction,
        arrays: Arrays,
        check_time: CheckTime,
    ) -> None:
        """Take what came along, and play in the environment.

        Raises
        ------
        AppFailedError
            If the environment raised, or gave what is not allowed.
        """
        has_peers = instruction.study.graph is not None
        sums = instruction.study.secure is not None
        # Else the next release is refused where one before is missing.
        if (has_peers or sums) and agent.num_releases < instruction.included:
            raise older_copy(agent.num_releases, instruction.included)
        if instruction.phase == "sum":
            return
        if len(arrays) and instruction.study.settings.uses_blocks:
            agent.receive_blocks(arrays[0], arrays[-1])
        elif len(arrays) and not has_peers:
            agents = instruction.agents_in_total
            times = instruction.num_synchronisations
            agent.receive(arrays[0], instruction.included, agents, times)
        if self.make_environment is None:
            return
        with playing(self.make_environment, context) as environment:
            limited = environment_in_time(environment, check_time)
            agent.play(limited, instruction.num_trials)

    def reply(
        self,
        agent: RecordedBandit,
        instruction: LinearBanditInstruction,
        arrays: Arrays,
    ) -> Answer:
        """Return the release that is wanted; among peers, what is to be passed on."""
        if instruction.study.graph is not None:
            return self._pass_on(agent, instruction, arrays)
        if instruction.phase == "sum":
            return self._sum(agent, instruction, arrays)
        if instruction.study.secure is not None:
            return Answer()  # its sums leave masked, or not at all
        trigger, wanted = instruction.study.trigger, instruction.send_release
        released = [agent.release(instruction.included + 1)] if wanted else []
        if trigger is None or wanted:
            return Answer(released)
        wants = agent.belief.wants_synchronisation()
        return Answer(metrics={"wants-synchronisation": int(wants)})

    @staticmethod
    def _sum(
        agent: RecordedBandit, instruction: LinearBanditInstruction, arrays: Arrays
    ) -> Answer:
        """Answer one exchange of a secure sum of blocks."""
        study, release = instruction.study, instruction.release
        most = study.settings.releases.max_releases
        if study.secure is None or not 1 <= release <= most:
            raise StudyMismatchError.told(f"Release {release} cannot be summed.")
        request = sum_request(instruction, arrays)
        who, journal = agent.in_sums, agent.journal
        reply = who.reply(journal, study.secure, request, lambda: agent.block(release))
        return Answer([reply])

    @staticmethod
    def _pass_on(
        agent: RecordedBandit, instruction: LinearBanditInstruction, arrays: Arrays
    ) -> Answer:
        """Take what has come since the last round, and say what there is to say."""
        from flwr_fbo.bandits.site.peer_mail import PeerMail

        mail = PeerMail(agent)
        iteration, number = instruction.iteration, instruction.synchronisation
        triggered = instruction.study.trigger is not None
        planned = instruction.study.settings.releases.num_releases
        newest = planned if triggered else instruction.believed + 1
        passed_on: list[NDArray[Any]] = [*mail.deliver(arrays, iteration, newest)]
        sent: list[NDArray[Any]] = [*mail.step(iteration)] if triggered else []
        mail.believe(instruction.believed)
        if number:
            sent.append(mail.synchronise(number, iteration))
        return Answer(sent, {"num-releases": agent.num_releases}, passed_on)


def linear_bandit_app(
    *,
    folder: str | Path | None = None,
    make_environment: MakeEnvironment | None = None,
    limits: Limits | None = None,
) -> ClientApp:
    """Return a `ClientApp` that synchronises the bandit of each site.

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
    >>> strategy.server.num_releases
    [2, 2, 2, 2]

    A site that plays at its own pace has no environment. It opens `LinearBanditPolicy`:

    >>> from flwr_fbo import Limits
    >>> limits = Limits(max_epsilon_per_example=4.0, max_delta=1e-5)
    >>> app = linear_bandit_app(folder="/var/lib/fbo", limits=limits)

    Parameters
    ----------
    folder : str or Path, optional
        Absolute path of the folder with the site's journal, for
        `LinearBanditPolicy.open`. The default is ``fbo-folder`` of the node config,
        else of the run config.
    make_environment : callable, optional
        Function from the client's context to a `BanditEnvironment`, which the client
        plays up to the server's schedule. Without a folder the journal is in
        ``context.state``, which lasts as long as the run.
    limits : Limits, optional
        Limits on the spending of all studies at a site, and on the cost of a message.
        The node config may set more, such as ``fbo-max-epsilon-per-example``. Without a
        limit on the epsilon of an example, a site without an environment takes part in
        any *private* study: with unseeded noise and no trigger. With
        ``Limits(max_epsilon_per_example=math.inf)`` it takes part in any study whose
        messages cost no more than the defaults of `Limits`.

    Raises
    ------
    ValueError
        If an argument is not allowed.
    """
    return site_app(LinearBanditSite(folder, make_environment, limits))
