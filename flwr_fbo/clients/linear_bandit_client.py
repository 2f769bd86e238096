"""Flower clients of FedUCB: they synchronise the bandit of one site."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import Context
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flwr_fbo._validation import require
from flwr_fbo.agents.durable.decentralized_fed_ucb import RecordedPeer
from flwr_fbo.agents.durable.fed_ucb import (
    FILE_NAME,
    BanditEnvironment,
    RecordedBandit,
    bandit_identity,
)
from flwr_fbo.agents.durable.refused_journal import older_copy
from flwr_fbo.clients.app_builders import answerer
from flwr_fbo.clients.held_journal import held_journal
from flwr_fbo.clients.limits import Limits
from flwr_fbo.clients.session import Answer, client_folder, configured_slot
from flwr_fbo.clients.tuning_client import SiteClient
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.protocol.codec import Phase
from flwr_fbo.protocol.linear_bandit_study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)

MakeEnvironment = Callable[[Context], BanditEnvironment]
MadeT = TypeVar("MadeT")

_log = logging.getLogger("flwr.fbo")


class EnvironmentFailedError(RuntimeError):
    """An environment raised, or gave what is not allowed; the text quotes nothing."""


class LinearBanditSite:
    """What a client brings to a study: a folder, or an environment, and its limits.

    The server writes the settings of a study, epsilon and all, and a site does its own
    noise by them. What it does not take part in, whatever the server says, is decided
    here.

    Parameters
    ----------
    folder : str or Path, optional
        Where the site's journal is, for `LinearBanditPolicy.open`. Unless given, what
        ``fbo-folder`` of the node config, else of the run config, names.
    make_environment : callable, optional
        Takes the client's context, returns a `BanditEnvironment`, which is then played
        as far as the server's schedule says. Without a folder the journal is in
        ``context.state``, which lives as long as the run; there a server that lies can
        have trials played again, in another study.
    max_epsilon, max_delta : float, optional
        What a study may spend at most. With either, what it promises must hold as it
        is: ``local_data="released"``. Without them a site that has no environment takes
        part in any *private* study: with noise, not seeded, and without a trigger.
        ``max_epsilon=math.inf`` takes part in any at all.

    Raises
    ------
    ValueError
        If an argument is not allowed.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        make_environment: MakeEnvironment | None = None,
        max_epsilon: float | None = None,
        max_delta: float | None = None,
    ) -> None:
        ok = folder is None or isinstance(folder, str | Path)
        ok = ok and (folder is None or Path(folder).is_absolute())
        require(ok, "folder", folder, "an absolute path")
        ok = make_environment is None or callable(make_environment)
        require(ok, "make_environment", make_environment, "a function")
        self._folder = None if folder is None else Path(folder)
        self._make_environment = make_environment
        has_environment = make_environment is not None
        self._limits = Limits.of(max_epsilon, max_delta, has_environment)

    def _check(self, study: LinearBanditStudy) -> None:
        """Raise unless the study promises what this site wants."""
        settings, releases = study.settings, study.settings.releases
        raw = settings.local_data == "raw"
        self._limits.check(study.private, releases.epsilon, releases.delta, raw)

    def answer(
        self,
        context: Context,
        arrays: Sequence[NDArray[Any]],
        config: Mapping[str, Any],
    ) -> Answer:
        """Carry out one instruction.

        Parameters
        ----------
        context : flwr.app.Context
        arrays : sequence of ndarray
            Empty, or the total of shape (d + 1, d + 1); of `DecentralizedFedUCB` what
            the agent's neighbours have sent, as bytes.
        config : mapping
            What `LinearBanditInstruction.to_config` wrote.

        Raises
        ------
        ValueError
            If the config or the arrays are not of `FedUCB`, or there is neither a
            folder nor an environment.
        ImportError
            If real noise is wanted and OpenDP is missing; the message names the extra.
        StudyRefusedError
            If the study promises less than this site wants.
        EnvironmentFailedError
            If the environment raised, or gave what is not allowed.
        JournalError
            If the journal cannot be used, or is not the one with this agent's releases.
        """
        instruction = LinearBanditInstruction.from_config(config)
        self._check(instruction.study)
        path = self._path(context)
        if path is None and self._make_environment is None:
            raise ValueError(
                "This site has no folder for its policy: give linear_bandit_app one, "
                "or its node config an fbo-folder."
            )
        new = instruction.phase is Phase.ENROL
        identity = bandit_identity(instruction.study)
        with held_journal(context, identity, path, may_begin=new) as journal:
            bandit = _bandit_in(journal)
            if new:
                bandit.require_entropy()
                slot = configured_slot(context)
                slot = bandit.slot if slot < 0 else slot
                return Answer(metrics={"agent-id": slot, "journal": bandit.number})
            return self._play(context, bandit, arrays, instruction)

    def _play(
        self,
        context: Context,
        bandit: RecordedBandit,
        arrays: Sequence[NDArray[Any]],
        instruction: LinearBanditInstruction,
    ) -> Answer:
        bandit.join(instruction.slot, instruction.journal)
        if isinstance(bandit, RecordedPeer):
            return self._pass_on(context, bandit, arrays, instruction)
        if len(arrays):
            bandit.receive(arrays[0], instruction.included)
        self._play_trials(context, bandit, instruction)
        trigger, wanted = instruction.study.trigger, instruction.send_release
        released = [bandit.release(instruction.included + 1)] if wanted else []
        if trigger is None or wanted:
            return Answer(released)
        wants = bandit.wants_synchronisation(trigger)
        return Answer(metrics={"wants-synchronisation": int(wants)})

    def _pass_on(
        self,
        context: Context,
        peer: RecordedPeer,
        mail: Sequence[NDArray[Any]],
        instruction: LinearBanditInstruction,
    ) -> Answer:
        """Play, take what has come in the meantime, and say what there is to say."""
        if peer.num_releases < instruction.included:
            raise older_copy(peer.num_releases, instruction.included)
        self._play_trials(context, peer, instruction)
        iteration, number = instruction.iteration, instruction.synchronisation
        triggered = instruction.study.trigger is not None
        planned = instruction.study.settings.releases.num_releases
        newest = planned if triggered else instruction.believed + 1
        sent: list[NDArray[Any]] = [*peer.deliver(mail, iteration, newest)]
        if triggered:
            sent += peer.step(iteration)
        peer.believe(instruction.believed)
        if number:
            sent.append(peer.synchronise(number, iteration))
        return Answer(sent, metrics={"num-releases": peer.num_releases})

    def _play_trials(
        self,
        context: Context,
        bandit: RecordedBandit,
        instruction: LinearBanditInstruction,
    ) -> None:
        if self._make_environment is None:
            return
        with playing(self._make_environment, context) as environment:
            bandit.play(environment, instruction.num_trials)

    def _path(self, context: Context) -> Path | None:
        folder = client_folder(context) if self._folder is None else self._folder
        return None if folder is None else folder / FILE_NAME


@contextmanager
def playing(make: Callable[[Context], MadeT], context: Context) -> Iterator[MadeT]:
    """Make an environment; say what goes wrong while it is played, and do not send it.

    Flower sends an exception's text to the server, and it may quote trials.
    """
    try:
        yield make(context)
    except JournalError:
        raise
    except Exception as error:
        _log.exception("The environment failed")
        raise EnvironmentFailedError(
            f"The environment failed: {type(error).__name__} (the client's log has the "
            "details)."
        ) from None


def _bandit_in(journal: Journal) -> RecordedBandit:
    """Return the agent of a journal: one that has peers, where there is a graph."""
    has_peers = journal.identity.get("graph") is not None
    return RecordedPeer(journal) if has_peers else RecordedBandit(journal)


class LinearBanditClient(SiteClient):
    """A `NumPyClient` that synchronises the bandit of one site.

    Parameters
    ----------
    context : flwr.app.Context
    folder, make_environment, max_epsilon, max_delta : optional
        See `LinearBanditSite`.

    Examples
    --------
    >>> def client_fn(context):
    ...     return LinearBanditClient(context, folder="/var/lib/fbo").to_client()
    >>> app = ClientApp(client_fn=client_fn)  # doctest: +SKIP
    """

    def __init__(
        self,
        context: Context,
        *,
        folder: str | Path | None = None,
        make_environment: MakeEnvironment | None = None,
        max_epsilon: float | None = None,
        max_delta: float | None = None,
    ) -> None:
        site = LinearBanditSite(folder, make_environment, max_epsilon, max_delta)
        super().__init__(site, context)


def linear_bandit_app(
    *,
    folder: str | Path | None = None,
    make_environment: MakeEnvironment | None = None,
    max_epsilon: float | None = None,
    max_delta: float | None = None,
) -> ClientApp:
    """Return a `ClientApp` that synchronises the bandit of each site.

    Parameters
    ----------
    folder, make_environment, max_epsilon, max_delta : optional
        See `LinearBanditSite`.

    Examples
    --------
    A site that plays whenever it has to, and opens `LinearBanditPolicy` to do so:

    >>> app = linear_bandit_app(
    ...     folder="/var/lib/fbo", max_epsilon=1.0, max_delta=1e-5
    ... )  # doctest: +SKIP
    """
    app = ClientApp()
    site = LinearBanditSite(folder, make_environment, max_epsilon, max_delta)
    app.train()(answerer(site.answer, LinearBanditInstruction.is_in))
    return app
