"""Who a site is in secure sums, and whom it trusts: its key, and the roster it pins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context

from flwr_fbo.clients.limits import refused
from flwr_fbo.clients.site_journal import NodeConfigError, configured_slot
from flwr_fbo.protocol.secure_sums import SecureSums
from flwr_fbo.secure_sum.roster import Roster, SigningKey

_ROSTER, _KEY = "fbo-roster", "fbo-key"


@dataclass(frozen=True)
class SumIdentity:
    """A site's key and roster; neither where the server is trusted to be honest.

    Attributes
    ----------
    key : SigningKey, optional
    roster : Roster, optional
    """

    key: SigningKey | None = None
    roster: Roster | None = None

    def check(self, sums: SecureSums | None) -> None:
        """Raise `StudyRefusedError` unless a study is summed under the pinned roster.

        The roster decides, and not the server: without it a server could enrol sites
        of its own.
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

    def slot(self, context: Context) -> int:
        """Return the slot of the key in the roster; without one the node config's.

        -1 if neither says it.

        Raises
        ------
        NodeConfigError
            If the roster lacks the key.
        """
        if self.roster is None or self.key is None:
            return configured_slot(context)
        for slot, public in self.roster.keys.items():
            if public == self.key.public:
                return slot
        text = f"{_ROSTER} lacks the key of {_KEY}."
        raise NodeConfigError(text, public=text)


def sum_identity(context: Context) -> SumIdentity:
    """Return what the node config names.

    Raises
    ------
    NodeConfigError
        If only one of ``fbo-roster`` and ``fbo-key`` is there, or a file is not what it
        should be.
    """
    roster, key = (_path(context, name) for name in (_ROSTER, _KEY))
    if roster is None and key is None:
        return SumIdentity()
    if roster is None or key is None:
        text = f"{_ROSTER} and {_KEY} are given together in the node config"
        raise NodeConfigError(f"{text}.", public=f"{text}.")
    try:
        return SumIdentity(SigningKey.load(key), Roster.load(roster))
    except (OSError, ValueError) as error:
        raise NodeConfigError(
            f"node config: {error}", public=f"{_ROSTER} or {_KEY} cannot be used."
        ) from error


def _path(context: Context, name: str) -> Path | None:
    given = context.node_config.get(name)
    if given is None:
        return None
    path = Path(str(given))
    if not path.is_absolute():
        allowed = f"{name} is not allowed: an absolute path."
        raise NodeConfigError(
            f"node config {name}={given!r}: {allowed}", public=allowed
        )
    return path
