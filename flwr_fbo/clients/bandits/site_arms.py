"""The named arms of a site, in the journal of its bandit.

newest-arms  the version of the arms that are offered now
arms-v       version v of them
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flwr_fbo._common.conversion import mapping, mappings, plain
from flwr_fbo._common.validation import require
from flwr_fbo.algorithms.linear_bandit.arm_table import ArmTable
from flwr_fbo.algorithms.linear_bandit.feature_encoder import FeatureEncoder
from flwr_fbo.algorithms.linear_bandit.feature_fields import Encoded
from flwr_fbo.clients.bandits.offer import Offer
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.journal.tables import Trial

# Of the table that the encoder's blocks make, where none was set.
_OF_BLOCKS = 0


class SiteArms:
    """The arms that one site offers, in all their versions.

    Parameters
    ----------
    journal : Journal
    encoder : FeatureEncoder, optional
        That of the study.
    max_norm : float
        L > 0.

    Raises
    ------
    ValueError
        By all methods, if the study has no encoder.
    """

    def __init__(
        self, journal: Journal, encoder: FeatureEncoder | None, max_norm: float
    ) -> None:
        self._journal, self._given, self._max_norm = journal, encoder, max_norm
        self._tables: dict[int, ArmTable] = {}
        newest = journal.load_array("newest-arms")
        self._newest = _OF_BLOCKS if newest is None else int(newest)

    @property
    def newest(self) -> ArmTable:
        """The arms that are offered now; with blocks, those unless others were set.

        Raises
        ------
        ValueError
            If there are no blocks, and no arms were set.
        """
        return self._table(self._newest)

    def set(self, arms: ArmTable) -> None:
        """Offer these arms from now on: the next version, unless they are the same.

        Raises
        ------
        ValueError
            If the encoder does not take them.
        """
        require(isinstance(arms, ArmTable), "arms", arms, "an ArmTable")
        arms.check(self._encoder)
        if self._newest != _OF_BLOCKS and arms.arms == self.newest.arms:
            return
        # A table that was written anew begins at 1; others are changes of one.
        ok = arms.version == 1 or arms.version > self._newest
        allowed = f"above {self._newest}: the site's arms have changed. Change those"
        require(ok, "arms.version", arms.version, allowed)
        version = max(self._newest + 1, arms.version)
        table = replace(arms, version=version)
        name, content = f"arms-{version}", to_json_array(table.to_dict())
        self._journal.put({"newest-arms": np.array(version), name: content})
        self._newest = version

    def offer(self, context: Any, eligible: Collection[str] | None = None) -> Offer:
        """Return what a decision is among, for a context and names of arms."""
        arms = self.newest.eligible(eligible)
        context = mapping("context", context)
        encoded = self._encoded(context, arms)
        names = tuple(name for name, _ in arms)
        record = {
            "context": {name: plain(value) for name, value in context.items()},
            "arms": self._newest,
        }
        if eligible is not None:
            record["eligible"] = list(names)
        return Offer(encoded.features, names, record, encoded.outside)

    def log(
        self, contexts: Any, chosen: Any, arms: ArmTable | None
    ) -> Iterator[Encoded]:
        """Return the actions of a log; see `FeatureEncoder.encode_log`.

        ``arms`` are those of that time, the newest unless given.
        """
        encoder, table = self._encoder, self.newest if arms is None else arms
        require(isinstance(table, ArmTable), "arms", arms, "an ArmTable")
        rows = mappings("contexts", contexts)
        require(len(rows) == len(chosen), "len(contexts)", len(rows), f"{len(chosen)}")
        return encoder.encode_log(rows, chosen, table.eligible(), self._max_norm)

    def again(self, trial: Trial) -> Offer:
        """Return what a recorded decision was among."""
        record = trial.params
        arms = self._table(record["arms"]).eligible(record.get("eligible"))
        features = self._encoded(record["context"], arms).features
        return Offer(features, tuple(name for name, _ in arms))

    def _encoded(
        self, context: Any, arms: tuple[tuple[str, Mapping[str, Any]], ...]
    ) -> Encoded:
        return self._encoder.encode(context, arms, self._max_norm)

    @property
    def _encoder(self) -> FeatureEncoder:
        if self._given is None:
            text = "The study has no encoder: actions are vectors, without names."
            raise ValueError(text)
        return self._given

    def _table(self, version: int) -> ArmTable:
        if version not in self._tables:
            self._tables[version] = self._read(version)
        return self._tables[version]

    def _read(self, version: int) -> ArmTable:
        if version == _OF_BLOCKS:
            encoder = self._encoder
            ok = bool(encoder.blocks) and not encoder.arm
            if not ok:
                raise ValueError("This site has no arms yet: give `set_arms` a table.")
            return ArmTable({name: {} for name in encoder.blocks})
        content = self._journal.load_array(f"arms-{version}")
        assert content is not None
        return ArmTable.from_dict(from_json_array(content))
