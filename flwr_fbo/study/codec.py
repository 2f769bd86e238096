"""Encoding of studies, instructions and arrays, and the receiver's checks.

*Studies and instructions* are plain scalars in Flower's config. A client is told the
whole study in every message, because in a deployment each message starts a fresh
process. There is one version for all of them, and one form: an entry ``fbo-NAME`` for
each field of an instruction, and the study as JSON: see `flwr_fbo._common.fields`.

*Arrays* are replies and totals. Nothing is taken from a message but numbers of the
shape that an honest half sends, and no larger than an honest half's can be.
"""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.errors import PublicError
from flwr_fbo._common.fields import fields_by_name, from_json, ruled, to_json
from flwr_fbo._common.validation import (
    refuse,
    require,
    require_choice,
    require_instance,
)
from flwr_fbo._common.version import __version__
from flwr_fbo.privacy.spending_ledger import UNPROTECTED, Promise

if TYPE_CHECKING:
    from flwr_fbo.privacy.continual_settings import ContinualSettings

# Raised when a message of an older version would be misunderstood.
PROTOCOL_VERSION = 18
_VERSION, _KIND = "fbo-protocol", "fbo-kind"

# Where the study is in a config, and the receipt for the agent's site.
STUDY_ENTRY, RECEIPT_ENTRY = "fbo-study", "fbo-receipt"
# Of a receipt with as many different charges as can be promised.
LONGEST_RECEIPT = 100_000
# Digits of an integer in JSON: seeds are below 2**128.
_MOST_DIGITS = 39

# No honest number is larger, where nothing bounds it: squares and sums stay finite.
LARGEST = 1e100
# Share of a sum's trace that rounding may take from an eigenvalue that is 0.
_ROUNDING = 1e-12
_SMALLEST = 1e-300

Config = dict[str, int | str | bool]


class StudyMismatchError(PublicError, ValueError):
    """A message, or its study, is not one that a client is made for."""


# What a message asks for: to say which slot you hold, if you know; to play, and answer
# with a message if it is wanted; to take part in one exchange of a secure sum.
Phase = Literal["enrol", "round", "sum"]


class Study(ABC):
    """A study, on which server and agents agree; each kind is a frozen dataclass.

    Attributes
    ----------
    own : tuple of str
        The fields that tell a study from another one with the same settings.
    promise : Promise
        Releases of a site at most, so that it can refuse beforehand.
    """

    own: ClassVar[tuple[str, ...]] = ("study_id",)

    study_id: str

    if TYPE_CHECKING:  # a field of some studies, and computed by others

        @property
        def promise(self) -> Promise:
            """Releases of a site at most."""
            raise NotImplementedError

    @property
    @abstractmethod
    def strategy(self) -> str:
        """Name of the strategy that runs such a study."""

    def to_dict(self) -> dict[str, Any]:
        """Return the study as JSON values."""
        values: dict[str, Any] = to_json(self)
        return values

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the study that ``to_dict`` gave, or that a journal belongs to."""
        known = fields_by_name(cls)
        study: Self = from_json(cls, {k: v for k, v in fields.items() if k in known})
        return study

    @abstractmethod
    def steps(self, num_rows: int) -> dict[str, float]:
        """Return about how many steps of 10 ns one message takes, by what is done.

        The trials themselves are not counted, nor what is cheap in any study.

        Parameters
        ----------
        num_rows : int
            Rows of the first array that comes along.
        """

    @abstractmethod
    def enrolment(self) -> Config:
        """Return the config that asks a client which slot it holds."""

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The study as JSON values, made once: not to be changed."""
        return self.to_dict()

    @cached_property
    def text(self) -> str:
        """The study as JSON: made once, sent to every agent in every round."""
        return json.dumps(self.fields, separators=(",", ":"))


@lru_cache(maxsize=8)  # a process may answer for many agents of one study
def _parsed(kind: type[Study], text: str) -> Study:
    return kind.from_dict(read_json(text))


def read_json(text: str) -> Any:
    """Return what JSON says.

    Raises
    ------
    ValueError
        If it is not JSON, or has NaN or an integer longer than any seed.
    RecursionError
        If it is nested a thousand times.
    """
    return json.loads(text, parse_int=_bounded_int, parse_constant=_infinity)


def _bounded_int(digits: str) -> int:
    require(len(digits) <= _MOST_DIGITS, "integer", digits[:9], "below 10**39")
    return int(digits)


def _infinity(name: str) -> float:
    require(name != "NaN", "number", name, "a number, or Infinity")
    return float(name)


@dataclass(frozen=True)
class Instruction(ABC):
    """The server's instruction to one agent; subclasses add int or bool fields.

    Attributes
    ----------
    phase : {"enrol", "round", "sum"}
        Phase of the study that the instruction belongs to.
    study : Study
        The study, the same for all agents.
    slot : int
        The agent's slot; -1 while enrolling.
    kind : str
        Tells the instructions of the subclasses apart.
    study_type : type
        Class of the study.
    """

    kind: ClassVar[str]
    study_type: ClassVar[type[Study]]

    phase: Phase
    study: Any
    slot: int = -1

    @property
    @abstractmethod
    def release_charged(self) -> int | None:
        """Number of the promised release, from 1, that an answer may be about.

        None if nothing in an answer depends on the site's data, whatever was asked.
        """

    @property
    def unprotected(self) -> str:
        """What is asked for that no guarantee covers, in words; empty without it."""
        return ""

    @property
    def releases_charged(self) -> list[int]:
        """All that an answer costs, as a ledger numbers it."""
        release = self.release_charged
        unprotected = [UNPROTECTED] if self.unprotected else []
        return unprotected if release is None else [release, *unprotected]

    def to_config(self) -> Config:
        """Return the instruction as entries of a Flower config."""
        values = {**vars(self), "study": self.study.text}
        config: Config = {_VERSION: PROTOCOL_VERSION, _KIND: self.kind}
        for name, entry in _entries(type(self)).items():
            config[entry] = values[name]
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the instruction in a config.

        Raises
        ------
        ValueError
            If the config is not of a flwr_fbo strategy, of another version, or of a
            strategy with other clients; or if a field is not of its type, or is below
            0 (a slot: -1), or not below 2**63.
        """
        version, kind = config.get(_VERSION), config.get(_KIND)
        if version != PROTOCOL_VERSION:
            raise ValueError(
                f"This client speaks version {PROTOCOL_VERSION} of flwr_fbo's "
                f"protocol (flwr_fbo {__version__}), the server sent {version!r} "
                "(None: not a flwr_fbo strategy). Install the same version of flwr_fbo "
                "on both sides."
            )
        if kind != cls.kind:
            raise ValueError(
                f"This client takes part in {cls.kind} studies, the server's strategy "
                f"runs a {kind} study."
            )
        values = {name: config[entry] for name, entry in _entries(cls).items()}
        for name in [key for key in values if key not in ("phase", "study")]:
            value, wanted = values[name], type(getattr(cls, name))  # int or bool
            least = -1 if name == "slot" else 0
            if type(value) is not wanted or not least <= value < 2**63:
                number = f"an integer >= {least}, below 2**63"
                refuse(name, value, "True or False" if wanted is bool else number)
        require_choice("phase", values["phase"], Phase)
        values["study"] = _parsed(cls.study_type, str(values["study"]))
        return cls(**values)


@dataclass(frozen=True)
class SumInstruction(Instruction):
    """The server's instruction to one agent, which may be asked to sum.

    Attributes
    ----------
    release : int
        Number of the promised release that is asked for, from 1; 0 for none.
    exchange : int
        In the phase ``"sum"``: exchange of the release's secure sum, from 1 to 5.
    attempt : int
        In the phase ``"sum"``: number that tells attempts at the sum apart.
    """

    release: int = field(default=0, kw_only=True)
    exchange: int = field(default=0, kw_only=True)
    attempt: int = field(default=0, kw_only=True)


def study_id_field() -> Any:
    """Return the field of a study's name, drawn unless it is given.

    Files can be named after it, as sites do.
    """
    return field(
        default_factory=lambda: secrets.token_hex(8), metadata=ruled(_check_study_id)
    )


def _check_study_id(name: str, study_id: Any) -> None:
    expected = "1 to 64 letters, digits, '-' or '_'"
    require_instance(name, study_id, str, allowed=expected)
    named = re.fullmatch(r"[A-Za-z0-9_-]{1,64}", study_id) is not None
    require(named, name, study_id, expected)


def kind_of(config: Mapping[str, Any]) -> str:
    """Return the kind of the instruction in a config."""
    return str(config.get(_KIND))


def is_instruction(config: Mapping[str, Any]) -> bool:
    """Return whether a config is of a flwr_fbo strategy, of whatever version."""
    return _VERSION in config


def fresh_seed() -> int:
    """Return a seed from the operating system, below 2**63."""
    return secrets.randbits(63)


@lru_cache(maxsize=8)  # there are fewer classes
def _entries(instruction: type[Instruction]) -> dict[str, str]:
    """Return the name of the config's entry for each field."""
    names = [field.name for field in fields(instruction)]
    return {name: f"fbo-{name.replace('_', '-')}" for name in names}


def is_array(
    message: Any, shape: tuple[int, ...], largest: FloatArray | float = LARGEST
) -> bool:
    """Return whether it is an array of finite numbers of a shape.

    Parameters
    ----------
    message : object
        Whatever an agent has sent.
    shape : tuple of int
        Shape that is expected.
    largest : float or ndarray
        No number may be larger in size; one for all, or one each.
    """
    return (
        isinstance(message, np.ndarray)
        and message.shape == shape
        and message.dtype == np.float64
        and bool((np.abs(message) <= largest).all())  # which NaN is not
    )


def is_sum(
    message: Any, shape: tuple[int, ...], largest: FloatArray | float = LARGEST
) -> bool:
    """Return whether it can be a sum of outer products, with other rows below it.

    With noise in it, or without: `is_raw_sum` is stricter.

    Parameters
    ----------
    message, largest
        See `is_array`.
    shape : tuple of int
        (..., rows, k): the first k rows are symmetric.
    """
    if not is_array(message, shape, largest):
        return False
    square = message[..., : shape[-1], :]
    return np.array_equal(square, np.swapaxes(square, -1, -2))


def is_raw_sum(
    message: Any, shape: tuple[int, ...], largest: FloatArray | float = LARGEST
) -> bool:
    """Return whether it can be a sum of outer products without noise.

    Such a sum is positive semidefinite, but for rounding. Another matrix could cancel
    what honest agents have learned, and leave them a total that nobody can use.

    Parameters
    ----------
    message, shape, largest
        See `is_sum`.
    """
    if not is_sum(message, shape, largest):
        return False
    square = message[..., : shape[-1], :]
    slack = _ROUNDING * np.trace(square, axis1=-2, axis2=-1)
    if (slack < 0).any():
        return False
    # An all-zero sum has no trace, and is one.
    raised = square + np.fmax(slack, _SMALLEST)[..., None, None] * np.eye(shape[-1])
    try:
        np.linalg.cholesky(raised)
    except np.linalg.LinAlgError:
        return False
    return True


def is_release(message: Any, settings: ContinualSettings) -> bool:
    """Return whether it can be what an honest agent's `ContinualRelease` returned.

    Parameters
    ----------
    message : object
        Message of an agent, of any type.
    settings : ContinualSettings
        Settings of the agent's releases.
    """
    is_one = is_sum if settings.noise_std > 0 else is_raw_sum
    return is_one(message, settings.sum_shape, settings.largest_entries)


def is_bytes(message: Any, length: int) -> bool:
    """Return whether it is an array of so many bytes."""
    is_one = isinstance(message, np.ndarray) and message.dtype == np.uint8
    return is_one and message.shape == (length,)
