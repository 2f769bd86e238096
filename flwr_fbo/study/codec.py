"""How studies and instructions travel: as plain scalars in Flower's config.

A client is told the whole study in every message, because in a deployment each message
starts a fresh process. There is one version for all of them, and one form: an entry
``fbo-NAME`` for each field of an instruction, and the study as JSON.
"""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self

from flwr_fbo._common.validation import require
from flwr_fbo.privacy.spending import Promise

# Raised when a message of an older version would be misunderstood.
PROTOCOL_VERSION = 16
_VERSION, _KIND = "fbo-protocol", "fbo-kind"

# Where the study is in a config.
STUDY_ENTRY = "fbo-study"
# Of an integer in JSON: seeds are below 2**128.
_MOST_DIGITS = 39

Config = dict[str, int | str | bool]


class Phase(Enum):
    """What a message asks for."""

    ENROL = "enrol"  # say which slot you hold, if you know
    ROUND = "round"  # play, and answer with a message if it is wanted
    SUM = "sum"  # take part in a secure sum of messages: one exchange of five


class Study(ABC):
    """What server and agents agree on; each kind of study is a frozen dataclass.

    Attributes
    ----------
    own : tuple of str
        The fields that tell a study from another one with the same settings.
    promise : Promise
        What is released of a site at most, so that it can refuse beforehand.
    """

    own: ClassVar[tuple[str, ...]] = ("study_id",)

    study_id: str
    promise: Promise

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the study as JSON values."""

    @classmethod
    @abstractmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the study that ``to_dict`` gave."""

    @abstractmethod
    def steps(self, num_rows: int) -> dict[str, float]:
        """Return about how many steps of 10 ns one message takes, by what is done.

        Besides the trials themselves; what takes little whatever the settings say is
        left out.

        Parameters
        ----------
        num_rows : int
            Of the first array that comes along.
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
    """What the server asks of one agent; subclasses add fields that are int or bool.

    Attributes
    ----------
    phase : Phase
    study : Study
    slot : int
        The agent's slot; -1 while enrolling.
    kind : str
        Tells the instructions of the subclasses apart.
    study_type : type
        Of the study.
    """

    kind: ClassVar[str]
    study_type: ClassVar[type[Study]]

    phase: Phase
    study: Any
    slot: int = -1

    def to_config(self) -> Config:
        """Return the instruction as entries of a Flower config."""
        values = {**vars(self), "phase": self.phase.value, "study": self.study.text}
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
                f"protocol, the server sent {version!r} (None: not a flwr_fbo "
                "strategy). Install the same version of flwr_fbo on both sides."
            )
        if kind != cls.kind:
            raise ValueError(
                f"This client takes part in {cls.kind} studies, the server's strategy "
                f"runs a {kind} study."
            )
        values = {name: config[entry] for name, entry in _entries(cls).items()}
        for name, value in values.items():
            if name in ("phase", "study"):
                continue
            least = -1 if name == "slot" else 0
            wanted = type(getattr(cls, name))  # of its default: int or bool
            if type(value) is not wanted or not least <= value < 2**63:
                number = f"an integer >= {least}, below 2**63"
                allowed = "True or False" if wanted is bool else number
                raise ValueError(f"{name}={value!r} is not allowed: {allowed}.")
        values["phase"] = Phase(values["phase"])
        values["study"] = _parsed(cls.study_type, str(values["study"]))
        return cls(**values)


def require_study_id(study_id: Any) -> None:
    """Raise ValueError unless files can be named after it, as sites do."""
    ok = isinstance(study_id, str)
    ok = ok and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", study_id) is not None
    require(ok, "study_id", study_id, "1 to 64 letters, digits, '-' or '_'")


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
