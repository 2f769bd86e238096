"""A site that a tuner asks: what it allows, and what it says of its ledger."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import ConfigRecord, Context, Message

from flwr_fbo._common.errors import refused
from flwr_fbo.privacy.spending_ledger import StudyKey
from flwr_fbo.secure import SecureSums, SumIdentity
from flwr_fbo.site.gate import Gate
from flwr_fbo.site.receipts import CHARGES, HEAD
from flwr_fbo.site.site_journal import configured_folder, configured_slot
from flwr_fbo.site.size_limits import check_numbers
from flwr_fbo.study.codec import StudyMismatchError
from flwr_fbo.tuner.ballots.rank_ballots import RankBallots
from flwr_fbo.tuner.message_headers import (
    KIND,
    RECEIPTS,
    SUM,
    BallotHeader,
    Header,
    ReplyHeader,
    SumHeader,
    TrialsHeader,
    read_header,
)
from flwr_fbo.tuner.site.trial_states import TrialStates

# Characters of a server's message in an error.
_LONGEST_QUOTE = 500


@dataclass(frozen=True)
class AskedSite:
    """A message of a tuner at a site, and the site's gate.

    Attributes
    ----------
    message : Message
        The message of the server.
    gate : Gate
        Answers whether a reply may leave.
    header : Header or None
        The request; None if the record with its name has none.
    """

    message: Message
    gate: Gate
    header: Header | None

    def own_slot(self, identity: SumIdentity) -> int:
        """Return the slot of the site's key; without one the node config's, or -1."""
        own = identity.slot
        return configured_slot(self.gate.context) if own < 0 else own

    @classmethod
    def of(cls, message: Message, context: Context) -> AskedSite:
        """Read a message, as large as the site allows, and the receipts in it.

        Raises
        ------
        StudyMismatchError
            If the header is not one of a tuner.
        RefusedError
            If the message is larger than the site allows.
        """
        gate = Gate(context, configured_folder(context))
        sizes = gate.sizes
        assert sizes.max_characters is not None
        try:
            header = read_header(message.content, sizes.max_characters)
        except ValueError as error:  # it quotes what the server has sent itself
            text = str(error)[:_LONGEST_QUOTE]
            raise StudyMismatchError.told(text) from None
        # What a message makes a site do grows with these numbers: they are bounded
        # first.
        if isinstance(header, TrialsHeader):
            sizes.check_size("max_trials", len(header.trials), "trials of a message")
            sizes.check_size("max_trials", len(header.alive), "trials of a tuner")
            longest = max(map(len, header.settings), default=0)
            sizes.check_size("max_dimension", longest, "settings of a trial")
        elif isinstance(header, BallotHeader | SumHeader):
            asked = header if isinstance(header, BallotHeader) else header.ballot
            sizes.check_size("max_features", len(asked.trials), "trials of a ballot")
        if isinstance(header, TrialsHeader | SumHeader) and header.sums is not None:
            sums = header.sums
            agents = [sums.settings.num_agents, *(g.slots.stop for g in sums.groups)]
            sizes.check_size("max_agents", max(agents), "num_agents")
            sizes.check_size("max_features", sums.num_features, "num_features")
            # A ballot is one bounded vector: no other sum has its sensitivity.
            if len(sums.groups) != 1 or sums.settings.num_sub_regions != 1:
                raise refused("a secure sum is of one bounded ballot")
        if isinstance(header, SumHeader):
            arrays = message.content.array_records[SUM].values()
            check_numbers(sizes, [len(array.data) / 8 for array in arrays])
        receipts = message.content.config_records.get(RECEIPTS) or ConfigRecord()
        sizes.check_size("max_trials", len(receipts), "receipts of a message")
        # Before anything is answered: they may prove that this folder is an older copy.
        gate.hear([*receipts.values()], configured_slot(context), KIND)
        return cls(message, gate, header)

    @staticmethod
    def key(header: TrialsHeader | BallotHeader) -> StudyKey:
        """Return the study that a site's ledger has a run of a tuner as."""
        return KIND, header.attempt

    def admit(
        self,
        header: TrialsHeader | BallotHeader,
        sums: SecureSums | None,
        unprotected: str = "",
    ) -> SumIdentity:
        """Return who the site is in sums.

        What a site sums decides whom the noise protects, and how far that may move it:
        a server could have it charged where it costs less, or have less noise added
        than one example needs.

        Raises
        ------
        RefusedError
            If the site does not allow what is left.
        """
        promise, ballots = header.promise, header.examples or RankBallots()
        if promise.private and promise.unit != ballots.unit:
            raise refused(
                f"the study says its epsilon is {promise.unit.words}, and its ballots "
                f"protect {ballots.unit.words}",
                public="the unit of its epsilon",
            )
        if header.examples is not None:
            self.gate.check_metric_range((header.examples.low, header.examples.high))
        # A score with a weight, or of another range, would move as far as that says.
        state = self.gate.context.state
        if not TrialStates.fit(state, header.attempt, header.examples):
            raise refused("the scores of its trials were not made for such ballots")
        if sums is not None:
            settings, num_trials = sums.settings, sums.num_features
            found = settings.clip_norm, settings.distance
            if found != (ballots.norm(num_trials), ballots.distance(num_trials)):
                raise refused("its sums are not of such ballots")
        # The key decides the slot: an app's partition-id is about its data.
        identity = self.gate.check_sums(sums, promise, unprotected=unprotected)
        self.gate.check(promise, unprotected)
        self.gate.admit(self.key(header), promise, "FederationTuner")
        return identity

    def reply_header(self, header: TrialsHeader | BallotHeader) -> ReplyHeader:
        """Return the header of a reply, with what it says of the site's ledger."""
        mark = self.gate.mark(self.key(header))
        if not mark:
            return ReplyHeader()
        agent = configured_slot(self.gate.context)
        return ReplyHeader(charges=mark[CHARGES], head=mark[HEAD], agent=agent)
