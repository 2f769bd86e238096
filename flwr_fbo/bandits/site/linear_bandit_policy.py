"""The policy by which a site plays its linear bandit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr_fbo._common.conversion import plain
from flwr_fbo._common.validation import (
    is_number,
    require,
    require_known,
    require_name,
)
from flwr_fbo.bandits.kind import LINEAR_SITE
from flwr_fbo.bandits.linear.arm_table import ArmTable
from flwr_fbo.bandits.linear.prior import Prior
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.bandits.site.bandit_policy import BanditPolicy, opened
from flwr_fbo.bandits.site.policy_summary import LinearPolicySummary
from flwr_fbo.bandits.site.realised_privacy import RealisedPrivacy
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.journal.journal import Journal


class LinearBanditPolicy(BanditPolicy[RecordedBandit]):
    """Chooses actions at one site, and learns from their rewards.

    A site opens the policy, chooses, and returns each reward when it is known,
    independently of Flower. Every call is on disk when it returns. Several processes
    may open the policy: each holds the journal during a call, and sees all changes.

    Examples
    --------
    >>> import tempfile
    >>> from flwr_fbo import (
    ...     FedUCB,
    ...     InProcessGrid,
    ...     LinearBanditPolicy,
    ...     linear_bandit_app,
    ... )
    >>> from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
    >>> folder = tempfile.mkdtemp()  # the site's own folder
    >>> grid = InProcessGrid(linear_bandit_app(folder=folder), num_nodes=1)
    >>> releases = ContinualSettings(
    ...     num_releases=2, dimension=2, epsilon=4.0, delta=1e-5
    ... )
    >>> settings = LinearUCBSettings(releases, local_data="own")
    >>> strategy = FedUCB(settings, num_agents=1, interval=0)
    >>> result = strategy.start(grid, num_rounds=3)
    >>> policy = LinearBanditPolicy.open(folder)
    >>> choice = policy.choose([[1.0, 0.0], [0.0, 1.0]])
    >>> policy.reward(choice.ticket, 0.7)  # when it is known, from any process
    >>> policy.num_trials
    1
    >>> policy.summary().estimate.shape
    (2,)

    Parameters
    ----------
    path : Path
        Path of the journal: `open` finds it.
    patience : float
        Seconds, >= 0, to wait while another process has the journal.
    """

    @classmethod
    def open(cls, folder: str | Path, patience: float = 30.0) -> LinearBanditPolicy:
        """Open the policy of the study that this site has enrolled in last.

        Parameters
        ----------
        folder : str or Path
            The folder of the site's ``linear_bandit_app``.
        patience : float
            Seconds, >= 0, to wait for the journal: until the site has enrolled, and
            later in each call, while another process has it.

        Raises
        ------
        ValueError
            If an argument is not allowed.
        JournalError
            If there is no journal, or the server did not enrol the site. The server
            sends the study's settings in the first round of `FedUCB`.
        """
        return opened(cls, folder, LINEAR_SITE, patience)

    def _recorded(self, journal: Journal) -> RecordedBandit:
        return RecordedBandit(journal)

    @property
    def arms(self) -> ArmTable:
        """The arms that this site offers now.

        Raises
        ------
        ValueError
            If the study has no encoder; or if no arms were set, unless its encoder has
            blocks and no fields of arms: then these are the arms.
        """
        with self._held() as bandit:
            return bandit.arms.current

    def set_arms(self, arms: ArmTable) -> None:
        """Offer these arms from now on, as another version of the table.

        ``policy.set_arms(policy.arms.remove("ward"))`` takes one away. Earlier
        decisions keep the version that they were made with.

        Raises
        ------
        ValueError
            If the study has no encoder, or it does not take an arm.
        JournalError
            If the arms could not be recorded.
        """
        with self._held() as bandit:
            bandit.arms.offer(arms)

    def set_prior(self, prior: Prior) -> None:
        """Start from what is known already; replaces the prior that was set before.

        It is kept in the site's journal, acts on choices from now on, and is added to
        what the site believes only: it is in no release.

        Parameters
        ----------
        prior : Prior
            A public log, coefficients, or another study's release; for example
            ``Prior.of_log(policy.settings, actions, rewards)``.

        Raises
        ------
        ValueError
            If it is of another dimension.
        JournalError
            If it could not be recorded.
        """
        require(isinstance(prior, Prior), "prior", prior, "a Prior")
        with self._held() as bandit:
            bandit.put(bandit.belief.set_prior(prior))

    def set_baseline(self, arm: str | None, at_most_worse: float = 0.1) -> None:
        """Stay near a baseline arm, such as standard care, from now on.

        Another arm is chosen only if the expected rewards of all decisions since then
        are surely at least ``1 - at_most_worse`` of those that the baseline arm would
        have had; else the baseline arm is. It needs ``local_data="own"`` and rewards
        that are not below 0. To set the same again changes nothing; another arm or
        share begins anew.

        Parameters
        ----------
        arm : str or None
            Name of the arm; None ends the rule. Decisions for which it is not possible
            are free, and do not count.
        at_most_worse : float
            Share, above 0 and below 1.

        Raises
        ------
        ValueError
            If an argument, or the study, is not such. Floors of other arms and slates
            are refused later.
        JournalError
            If it could not be recorded.

        Notes
        -----
        *Confidence.* It holds at all times together with probability 1 - ``alpha`` of
        the settings, as the confidence sets of own data do (see `add_history`). A
        decision that is cancelled no longer counts: see
        `flwr_fbo.bandits.site.baseline`.
        """
        share = plain(at_most_worse)
        is_share = is_number(share) and 0 < share < 1
        require(is_share, "at_most_worse", share, "a number above 0 and below 1")
        with self._held() as bandit:
            if arm is not None:
                require_name("arm", arm)
            if arm is not None and bandit.study.settings.encoder is not None:
                require_known("arm", arm, bandit.arms.current.names)
            bandit.put(bandit.belief.set_baseline(arm, float(share)))

    @property
    def settings(self) -> LinearUCBSettings:
        """Settings of the study."""
        with self._held() as bandit:
            return bandit.study.settings

    def add_history(
        self,
        actions: Any,
        rewards: Any,
        contexts: Any = None,
        *,
        arms: ArmTable | None = None,
        name: str = "history",
    ) -> int:
        """Add trials that were logged before the study; the next release includes them.

        Sums are kept, not trials: a million rows take seconds. `decisions`, and so
        `evaluate_policy`, do not have them. To add the same log again changes nothing,
        so that a script that was killed may be run again.

        Parameters
        ----------
        actions : array of shape (T, d), or sequence of T str
            The action that each trial took: a vector of norm at most L or, where the
            study has an encoder, the name of an arm.
        rewards : array of shape (T,)
            What each was rewarded with, in [-B, B].
        contexts : sequence of T mappings or data frame, optional
            The contexts, where the study has an encoder: as in `choose`.
        arms : ArmTable, optional
            The arms at that time, for a study with an encoder. By default those that
            the site offers now. Add trials of other tables as logs of their own.
        name : str
            The log's name. Logs of different names must not share a trial.

        Returns
        -------
        int
            T, or 0 if the log was there already.

        Raises
        ------
        ValueError
            If a trial is not within the bounds, nothing is recorded; the message names
            it. If another log has the name, or the log another name. If all releases
            are made, or the sums would have more trials than they can hold exactly.
        JournalError
            If the log could not be recorded.

        Notes
        -----
        *Formal guarantees.* A logged trial is one more trial of the site's stream, and
        in the sums from one release on, as one that was played: `ContinualRelease`'s
        guarantee is for it too, at the same noise and epsilon. How many trials there
        are does not matter to it. Neighbouring logs differ in one trial, replaced by
        another, and what other rows tell of it is not covered: also where they were
        chosen by what it gave. A person with m trials, in logs or played, has m times
        `ContinualSettings.mu`. The guarantee needs each trial once: not in two logs,
        nor chosen by this policy. What other studies have released of a log adds to
        this study's epsilon; a site's `Limits` count all studies in its folder.

        *Confidence.* The intervals hold with a log if each of its actions was chosen
        without knowledge of its own reward or later ones, by whatever policy; if trials
        are in it whatever their rewards; and if rewards depended on action and context
        by the same theta, with nothing left out that influenced both the choice and the
        reward. *Proof.* Put the log before the trials that are played: each action then
        depends on what was before, which is all that Abbasi-Yadkori et al. (2011,
        theorem 1) need. A log that is added after the site's first release, or with
        ``local_data="raw"`` after its first trial, begins another such sequence. With
        M agents it adds alpha / (2 M) to the probability that an interval ever fails,
        unless the study has a sliding window or no known number of releases, where each
        synchronisation has its own share of alpha.
        """
        with self._held() as bandit:
            return bandit.add_history(actions, rewards, contexts, arms, name)

    def summary(self) -> LinearPolicySummary:
        """Return what the site has learned, and what it has spent.

        ``print(policy.summary())`` shows it as a text; see `LinearPolicySummary`.
        """
        with self._held() as bandit:
            return bandit.summary()

    def realised_privacy(
        self, num_patients: int = 20, seed: int | None = None
    ) -> RealisedPrivacy:
        """Estimate what the site's releases tell about one outcome, as play goes on.

        With ``local_data="own"`` the study's epsilon is for a finished table. Here one
        outcome after another is replaced, and the decisions since are played again; see
        `flwr_fbo.bandits.site.realised_privacy` for what is assumed. The figure is for
        the site alone: it is never sent. `summary` shows the last one.

        Each outcome costs about the time of all choices since: 20 of them in 500 trials
        of dimension 20 take some ten seconds. Others may choose meanwhile.

        Parameters
        ----------
        num_patients : int
            Outcomes to replace, from 1 to 1000: drawn among all that are in a release.
        seed : int, optional
            Seed of the draw, for a figure that can be had again.

        Returns
        -------
        RealisedPrivacy
            With the epsilon of each outcome, the median, and that of 90 %. That of the
            study where sites act on released sums only, as it covers what follows.

        Raises
        ------
        ValueError
            If there is no release yet, no reward in one, or more than 4,096 of them; or
            among peers.
        JournalError
            If it could not be recorded.
        """
        with self._held() as bandit:
            stream = bandit.played()
        found = stream.realised(num_patients, seed)
        with self._held() as bandit:
            bandit.keep_realised(found)
        return found
