"""DP-SGD in terms that do not depend on data, and the noise that keeps to a total.

A client that trains with DP-SGD says what a round does, so that its site can count it
with all else that the site has spent: see `flwr_fbo.charge_training`. Before the first
message `plan_training` says which noise multiplier each client should train with, so
that training and a private choice keep to one epsilon for an example.

Examples
--------
>>> from flwr_fbo import PrivateChoice
>>> from flwr_fbo.privacy import DPSGD, plan_training
>>> one_round = DPSGD(noise_multiplier=1.1, sampling_probability=0.05, num_steps=20)
>>> plan = plan_training(
...     8.0,
...     1e-5,
...     sampling_probability=0.05,
...     num_steps=27 * 20,
...     choice=PrivateChoice(epsilon=0.5, delta=1e-5),
... )
>>> plan.training.noise_multiplier < 1.1
True
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from flwr_fbo._common.fields import FREE, check_fields, flag, integer, number
from flwr_fbo._common.validation import (
    refuse,
    require,
    require_choice,
    require_int,
)
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.gaussian import (
    LEAST_NOISE,
    check_delta,
    check_epsilon,
    gaussian_mu,
)
from flwr_fbo.privacy.guarantee import (
    EXAMPLE,
    ONE_EXAMPLE_LESS,
    Guarantee,
    PrivacyUnit,
    Protects,
)
from flwr_fbo.privacy.sampling import PROBABILITY
from flwr_fbo.privacy.spending_ledger import (
    MOST_NOISE,
    MOST_STEPS,
    Charge,
    counted_in,
)

if TYPE_CHECKING:
    from flwr_fbo.privacy.accounting import PrivacySpent

# Attributes of Opacus's optimizers that clip to a norm which they adapt.
_OF_ADAPTIVE_CLIPPING = (
    "fraction_std",
    "unclipped_num_std",
    "target_unclipped_quantile",
)


@dataclass(frozen=True)
class DPSGD:
    """Steps of DP-SGD with one noise multiplier and one sampling probability.

    Examples
    --------
    >>> from flwr_fbo.privacy import DPSGD
    >>> DPSGD(noise_multiplier=1.1, sampling_probability=0.05, num_steps=20)
    DPSGD(noise_multiplier=1.1, sampling_probability=0.05, num_steps=20, poisson=True)

    Attributes
    ----------
    noise_multiplier : float
        Standard deviation of the noise of a step over the clipping norm of one
        example's gradient, from 1e-3 to 1e6.
    sampling_probability : float
        Probability in (0, 1] that an example is in the batch of a step. With shuffled
        batches the batch size over the number of examples.
    num_steps : int
        Steps, from 1 to 100,000.
    poisson : bool
        Whether each batch is drawn by Poisson sampling: each example on its own. False
        for batches of a shuffled data set: they amplify nothing here. An example is
        then in one batch of each epoch, and each of these counts in full. These steps
        begin with a new epoch, so a plan is a sequence of rounds: ``[one_round] * 27``.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.

    Notes
    -----
    *Formal guarantees*. It is for one example, with or without it: its gradient, or
    zero. Each step sums gradients that are clipped to norm C, and adds Gaussian noise
    of ``noise_multiplier`` times C. The values must not depend on the data: a sampling
    probability of 64 over the number of examples tells that number.
    """

    noise_multiplier: float = field(metadata=number(LEAST_NOISE, MOST_NOISE))
    sampling_probability: float = field(metadata=PROBABILITY)
    num_steps: int = field(metadata=integer(1, MOST_STEPS, cap=FREE))
    poisson: bool = field(default=True, metadata=flag())

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def charge(self) -> Charge:
        """Cost of the steps to an example, with or without it."""
        if self.poisson:
            return Charge(
                self.noise_multiplier, self.sampling_probability, self.num_steps
            )
        # A last batch that is smaller may be left out: then epochs are shorter.
        steps_of_epoch = max(1, math.floor(1 / self.sampling_probability + 1e-9))
        times = math.ceil(self.num_steps / steps_of_epoch)
        return Charge(self.noise_multiplier, 1.0, times)

    @classmethod
    def from_opacus(cls, optimizer: Any, data_loader: Any, epochs: int = 1) -> DPSGD:
        """Return what epochs with Opacus will do, before they begin.

        Parameters
        ----------
        optimizer, data_loader : object
            What ``PrivacyEngine.make_private`` has returned; not the data loader of a
            ``BatchMemoryManager``, whose batches are parts of a step. Each batch must
            be one step: gradients that will be accumulated over several batches cannot
            be seen here, and cost more than this says.
        epochs : int
            Passes through the data loader, >= 1.

        Raises
        ------
        ValueError
            If they are not Opacus's, the optimizer adapts its clipping norm, has
            accumulated gradients, or an argument is not allowed.
        """
        require_int("epochs", epochs, 1)
        expected = "the optimizer of Opacus's PrivacyEngine.make_private"
        is_private = hasattr(optimizer, "noise_multiplier")
        require(is_private, "optimizer", optimizer, expected)
        # It releases more than gradients: how many of them were clipped.
        adapts = any(hasattr(optimizer, name) for name in _OF_ADAPTIVE_CLIPPING)
        expected = "one with a fixed clipping norm: what adapts it is not counted"
        require(not adapts, "optimizer", optimizer, expected)
        try:
            accumulated = getattr(optimizer, "accumulated_iterations", 1)
        except ValueError:  # no batch yet
            accumulated = 1
        expected = "one step for each batch: accumulated gradients sample more often"
        require(accumulated <= 1, "accumulated_iterations", accumulated, expected)
        z = optimizer.noise_multiplier
        batches = getattr(data_loader, "batch_sampler", None)
        expected = "the data loader of Opacus's PrivacyEngine.make_private, as it is"
        # The sampler of a BatchMemoryManager splits the batches of another one.
        is_whole = batches is not None and not hasattr(batches, "max_batch_size")
        require(is_whole, "data_loader", data_loader, expected)
        steps = len(data_loader)
        q = getattr(batches, "sample_rate", None)
        return cls(z, 1 / steps if q is None else q, epochs * steps, q is not None)

    @classmethod
    def from_dp_event(cls, event: Any) -> tuple[DPSGD, ...]:
        """Return the steps of a ``DpEvent`` of dp-accounting, as jax-privacy has it.

        Parameters
        ----------
        event : object
            Event of Poisson-sampled or plain Gaussian mechanisms, composed; or what has
            one as its ``dp_event`` (an execution plan of jax-privacy) or as its
            ``ledger`` (an accountant of dp-accounting).

        Raises
        ------
        ImportError
            If dp-accounting is missing.
        ValueError
            If there is another mechanism in it.
        """
        try:
            import dp_accounting
        except ImportError as error:
            text = "A DpEvent is read with dp-accounting: pip install dp-accounting."
            raise ImportError(text) from error
        for name in ("dp_event", "ledger"):
            event = getattr(event, name, event)
        found: list[DPSGD] = []

        def read(part: Any, times: int) -> None:
            match part:
                case dp_accounting.NoOpDpEvent():
                    pass
                case dp_accounting.ComposedDpEvent(events=parts):
                    for each in parts:
                        read(each, times)
                case dp_accounting.SelfComposedDpEvent(event=inner, count=count):
                    read(inner, times * count)
                case dp_accounting.GaussianDpEvent(noise_multiplier=z):
                    found.append(cls(z, 1.0, times))
                case dp_accounting.PoissonSampledDpEvent(
                    sampling_probability=q,
                    event=dp_accounting.GaussianDpEvent(noise_multiplier=z),
                ):
                    found.append(cls(z, q, times))
                case _:
                    expected = "of Poisson-sampled or plain Gaussian mechanisms alone"
                    refuse("event", part, expected)

        read(event, 1)
        return tuple(found)


Trainings = DPSGD | Sequence[DPSGD]


def charges_of(name: str, trainings: Trainings) -> tuple[Charge, ...]:
    """Return what steps of DP-SGD cost an example; equal ones are one charge.

    Raises
    ------
    ValueError
        If they are not `DPSGD`, there are none, or there are too many steps.
    """
    several = (trainings,) if isinstance(trainings, DPSGD) else trainings
    is_valid = isinstance(several, Sequence) and len(several) > 0
    is_valid = is_valid and all(isinstance(each, DPSGD) for each in several)
    require(is_valid, name, trainings, "a DPSGD, or several")
    counts: Counter[tuple[float, float]] = Counter()
    for each in several:
        z, q, count = astuple(each.charge)
        counts[z, q] += count
    steps, expected = sum(counts.values()), f"at most {MOST_STEPS} in all"
    require(steps <= MOST_STEPS, f"num_steps of {name}", steps, expected)
    return tuple(Charge(z, q, count) for (z, q), count in counts.items())


class Choice(Protocol):
    """What is needed of a private choice: `flwr_fbo.PrivateChoice` has it.

    Attributes
    ----------
    epsilon, delta : float
        Of all rungs together.
    protects : {"client", "example"}
        Whom they protect: a client whose messages are zeroed, or an example that is
        replaced by another.
    """

    @property
    def epsilon(self) -> float: ...  # noqa: D102

    @property
    def delta(self) -> float: ...  # noqa: D102

    @property
    def protects(self) -> Protects: ...  # noqa: D102


@dataclass(frozen=True)
class TrainingPlan:
    """Training and choice that keep to one epsilon for an example.

    Attributes
    ----------
    training : DPSGD
        All steps that each client takes, with their noise multiplier.
    of_training, of_choice, together : PrivacySpent
        What they spend, for one example with or without it; ``epsilon_if_replaced`` has
        what they spend for one that is replaced by another.
    """

    training: DPSGD
    of_training: PrivacySpent
    of_choice: PrivacySpent
    together: PrivacySpent


def plan_training(
    epsilon: float,
    delta: float,
    *,
    sampling_probability: float,
    num_steps: int,
    choice: Choice | None = None,
) -> TrainingPlan:
    """Return the training that fits into a total epsilon, beside a private choice.

    It is the one with the smallest noise multiplier, to 0.1 %. Both are added up as a
    site's ledger does it, where the training is charged first, with these steps as its
    plan (see `flwr_fbo.charge_training`): so a site whose
    ``fbo-max-epsilon-per-example`` is this epsilon takes part.

    Parameters
    ----------
    epsilon, delta : float
        Of training and choice together, for one example with or without it; epsilon is
        from 1e-3 to 1e3, delta in (0, 1).
    sampling_probability : float
        Largest sampling probability of the trials. See `DPSGD`.
    num_steps : int
        Number of steps, of all trials, that an example can be in. Batches are drawn by
        Poisson sampling.
    choice : PrivateChoice, optional
        The choice; what protects a client protects its examples, at twice the distance.

    Raises
    ------
    ValueError
        If an argument is not allowed, or the choice spends as much.
    """
    from flwr_fbo.privacy.accounting import smallest_noise_multiplier

    check_epsilon(epsilon)
    check_delta(delta)
    steps = DPSGD(1.0, sampling_probability, num_steps)
    beside: tuple[Charge, ...] = ()
    if choice is not None:
        mu = gaussian_mu(choice.epsilon, choice.delta)
        require_choice("choice.protects", choice.protects, Protects)
        # A message that is replaced by another: see `flwr_fbo.privacy.guarantee`.
        beside = (Charge(1 / mu if choice.protects == "example" else 0.5 / mu),)
        # With some noise for the training: beside it the choice spends a little more.
        quiet = replace(steps, noise_multiplier=MOST_NOISE)
        least = _total(ONE_EXAMPLE_LESS, quiet, beside).epsilon(delta)
        expected = f"above what the choice spends beside any training, {least:.4g}"
        require(epsilon > least, "epsilon", epsilon, expected)

    def spends(noise_multiplier: float) -> float:
        training = replace(steps, noise_multiplier=noise_multiplier)
        return _total(ONE_EXAMPLE_LESS, training, beside).epsilon(delta)

    z = smallest_noise_multiplier(spends, epsilon)
    training = replace(steps, noise_multiplier=z)
    return TrainingPlan(
        training,
        _spent(training, (), delta),
        _spent(None, beside, delta),
        _spent(training, beside, delta),
    )


def _total(
    unit: PrivacyUnit, training: DPSGD | None, beside: tuple[Charge, ...]
) -> Spent:
    """Return what a ledger has of a training and then of releases for examples."""
    planned = () if training is None else (training.charge,)
    groups = [counted_in(unit, ONE_EXAMPLE_LESS, planned)]
    groups += [counted_in(unit, EXAMPLE, (charge,)) for charge in beside]
    found = tuple(group for group in groups if group)
    return Spent(found, len(found), unit)


def _spent(
    training: DPSGD | None, beside: tuple[Charge, ...], delta: float
) -> PrivacySpent:
    from flwr_fbo.privacy.accounting import PrivacySpent

    total = _total(ONE_EXAMPLE_LESS, training, beside)
    return PrivacySpent(
        total.epsilon(delta),
        delta,
        total.num_releases,
        "filter",
        guarantee=Guarantee(ONE_EXAMPLE_LESS),
        epsilon_if_replaced=_total(EXAMPLE, training, beside).epsilon(delta),
    )
