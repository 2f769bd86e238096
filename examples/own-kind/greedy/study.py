"""The study, on which server and sites agree, and the instruction to one site."""

from dataclasses import dataclass, field
from functools import cached_property

from flwr_fbo._common.fields import FREE, check_fields, fraction, instance, integer
from flwr_fbo._common.fields import seed as seed_rule
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.guarantee import EXAMPLE, Guarantee
from flwr_fbo.privacy.spending_ledger import Promise
from flwr_fbo.study.codec import Config, Instruction, Study, study_id_field
from greedy.kind import GREEDY


@dataclass(frozen=True)
class GreedyStudy(Study):
    """A study. A field says what is allowed, and which limit of a site caps it."""

    # Drawn by each strategy: one that goes on with a study takes those on record.
    own = ("study_id", "seed")

    releases: ContinualSettings = field(
        metadata=instance(ContinualSettings, part=ContinualSettings)
    )
    num_agents: int = field(metadata=integer(2, cap="max_agents"))
    trials_a_round: int = field(metadata=integer(1, cap="max_trials"))
    exploration: float = field(metadata=fraction())
    seed: int = field(metadata=integer(0, cap=FREE))
    noise_seed: int | None = field(default=None, metadata=seed_rule())
    study_id: str = study_id_field()

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def strategy(self) -> str:
        """Name of the strategy."""
        return "FedGreedy"

    @property
    def has_noise(self) -> bool:
        """Whether releases have noise; an agent draws it from `noise_seed` if given."""
        return self.releases.noise_std > 0

    @cached_property
    def promise(self) -> Promise:
        """One charge for all releases: they are one mechanism."""
        return Promise.of_one_mechanism(
            self.releases.mu,
            # Computed, never written down: a seed is known to the server.
            private=self.has_noise and self.noise_seed is None,
            delta=self.releases.delta,
            # An agent acts on the total of releases alone. One that acted on its own
            # sums would have to say True: its later trials tell of the earlier ones.
            fixed_rows=False,
        )

    def steps(self, num_rows: int) -> dict[str, float]:
        """Return what a message takes: that of a release."""
        return self.releases.steps

    def enrolment(self) -> Config:
        """Return the config that asks a site which slot it holds."""
        return GreedyInstruction("enrol", self).to_config()

    def spent(self, num_releases: int) -> PrivacySpent:
        """Return what an agent with so many releases has spent."""
        epsilon = self.releases.epsilon if num_releases else 0.0
        method = "gdp" if num_releases and self.has_noise else "none"
        about = epsilon, self.releases.delta, num_releases, method
        return PrivacySpent(*about, guarantee=Guarantee(EXAMPLE, "local"))


@dataclass(frozen=True)
class GreedyInstruction(Instruction):
    """One round: integers >= 0, each with a default."""

    kind = GREEDY.name
    study_type = GreedyStudy

    journal: int = 0  # the number of the journal that the site enrolled with
    num_trials: int = 0  # of the whole study, after this round
    release: int = 0  # the site's next one, of `ContinualRelease`
    heard: int = 0  # how many of the site's releases have come

    @property
    def release_charged(self) -> int:
        """Number of the charge, not of the release: there is one for all releases."""
        return 1
