"""Identity of a site in secure sums: its key, and the roster that it pins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context

from flwr_fbo._common.validation import require
from flwr_fbo.site.limits import refused
from flwr_fbo.site.site_journal import NodeConfigError, configured_slot

if TYPE_CHECKING:
    from flwr_fbo.secure_sum.roster import Roster, SigningKey
    from flwr_fbo.study.secure_sums import SecureSums

_ROSTER, _KEY = "fbo-roster", "fbo-key"


@dataclass(frozen=True)
class SumIdentity:
    """A site's key and roster; neither where the server is trusted to be honest.

    Attributes
    ----------
    key : SigningKey, optional
        Key that signs what the site sends.
    roster : Roster, optional
        Roster of the sites whose sums it takes part in.
    """

    key: SigningKey | None = None
    roster: Roster | None = None

    @cached_property
    def slot(self) -> int:
        """The slot that the roster gives the key; -1 without a roster."""
        if self.roster is None or self.key is None:
            return -1
        slots = {key: slot for slot, key in self.roster.keys.items()}
        return slots[self.key.public]

    def own_slot(self, context: Context) -> int:
        """Return the slot of the key; without a roster the node config's, or -1.

        Raises
        ------
        ValueError
            As in `configured_slot`.
        """
        return configured_slot(context) if self.slot < 0 else self.slot

    def check(self, sums: SecureSums | None, slot: int) -> None:
        """Raise `RefusedError` unless a study is summed under the pinned roster.

        The roster decides, and not the server: without it a server could enrol sites
        of its own.

        Parameters
        ----------
        sums : SecureSums, optional
            Settings of the study's secure sums; None if the server is trusted.
        slot : int
            Slot that the site knows it holds, or -1.
        """
        named = "" if sums is None else sums.roster
        if self.roster is None:
            if named:
                raise refused(
                    f"the study has a roster; give {_ROSTER} and {_KEY} in the node "
                    "config"
                )
            return
        if sums is None:
            raise refused("it pins a roster, and the study has no secure aggregation")
        if named != self.roster.digest():
            raise refused("the study does not have the roster that it pins")
        if slot not in (-1, self.slot):
            raise refused(
                f"its slot is {slot}, and the roster has its key for slot {self.slot}"
            )


def pins_roster(context: Context) -> bool:
    """Return whether a site lets nothing be read but sums, by its node config."""
    return _ROSTER in context.node_config


def sum_identity(context: Context) -> SumIdentity:
    """Return what the node config names.

    Raises
    ------
    NodeConfigError
        If only one of ``fbo-roster`` and ``fbo-key`` is there, a file is not what it
        should be, or the roster lacks the key.
    """
    roster, key = (_path(context, name) for name in (_ROSTER, _KEY))
    if roster is None and key is None:
        return SumIdentity()
    if roster is None or key is None:
        text = f"{_ROSTER} and {_KEY} are given together in the node config"
        raise NodeConfigError.told(f"{text}.")
    from flwr_fbo.secure_sum.roster import Roster, SigningKey

    with _named(_ROSTER):
        pinned = Roster.load(roster)
    with _named(_KEY):
        signing_key = SigningKey.load(key)
        has_key = signing_key.public in pinned.keys.values()
        require(
            has_key, "public key", signing_key.public, f"a key of the roster {roster}"
        )
    return SumIdentity(signing_key, pinned)


@contextmanager
def _named(entry: str) -> Iterator[None]:
    """Raise NodeConfigError, with the entry's name, where a file cannot be used."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise NodeConfigError(
            f"node config {entry}: {error}", public=f"{entry} cannot be used."
        ) from None


def _path(context: Context, name: str) -> Path | None:
    value = context.node_config.get(name)
    if value is None:
        return None
    path = Path(str(value))
    if not path.is_absolute():
        expected = "is not allowed: an absolute path."
        raise NodeConfigError(
            f"node config {name}={value!r} {expected}", public=f"{name} {expected}"
        )
    return path
