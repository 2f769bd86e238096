"""The named arms of one site, in all versions that decisions were made with.

In the journal are

    newest-arms  the version of the arms that are offered now
    arms-v       version v of them
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.validation import require, require_instance
from flwr_fbo.bandits.linear.arm_table import ArmTable
from flwr_fbo.bandits.linear.feature_encoder import Arms, FeatureEncoder
from flwr_fbo.bandits.linear.feature_fields import Encoded
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.npy import from_json_array, to_json_array

# The version of the table that the encoder's blocks make, where none was set.
_OF_BLOCKS = 0


class ArmVersions:
    """The tables of arms that a site has offered, and the one that it offers now.

    Parameters
    ----------
    journal : Journal
        Journal of the site's bandit.
    settings : LinearUCBSettings
        Settings of the study.
    state : dict of str to ndarray
        Arrays of `Journal.load_unnumbered`; what is recorded here is added.
    """

    def __init__(
        self,
        journal: Journal,
        settings: LinearUCBSettings,
        state: dict[str, NDArray[Any]],
    ) -> None:
        self._journal, self._settings, self._state = journal, settings, state
        # A version never changes.
        self._tables: dict[int, ArmTable] = {}

    @property
    def encoder(self) -> FeatureEncoder:
        """The study's encoder.

        Raises
        ------
        ValueError
            If it has none.
        """
        if self._settings.encoder is None:
            text = "The study has no encoder: actions are vectors, without names."
            raise ValueError(text)
        return self._settings.encoder

    def encoded(self, context: Mapping[str, Any], arms: Arms) -> Encoded:
        """Return features of arms in a context; see `FeatureEncoder.encode`."""
        longest = self._settings.releases.max_action_norm
        return self.encoder.encode(context, arms, longest)

    @property
    def newest(self) -> int:
        """The version that is offered now."""
        return int(self._state.get("newest-arms", _OF_BLOCKS))

    @property
    def current(self) -> ArmTable:
        """The arms that are offered now; see `table`."""
        return self.table(self.newest)

    def table(self, version: int) -> ArmTable:
        """Return one version; with blocks, their table where none was set.

        Raises
        ------
        ValueError
            If the study has no encoder; if there are no blocks, and no arms were set.
        """
        if version in self._tables:
            return self._tables[version]
        if version == _OF_BLOCKS:
            if not self.encoder.blocks or self.encoder.arm:
                raise ValueError("This site has no arms yet: give `set_arms` a table.")
            table = ArmTable({name: {} for name in self.encoder.blocks})
        else:
            content = self._journal.load_array(f"arms-{version}")
            assert content is not None
            table = ArmTable.from_dict(from_json_array(content))
        self._tables[version] = table
        return table

    def offer(self, arms: ArmTable) -> None:
        """Offer these arms from now on: the next version, unless they are the same.

        Raises
        ------
        ValueError
            If there is no encoder, or it does not take them.
        """
        require_instance("arms", arms, ArmTable)
        arms.check(self.encoder)
        newest = self.newest
        if newest != _OF_BLOCKS and arms.arms == self.current.arms:
            return
        # A table that was written anew begins at 1; others are changes of one.
        is_newer = arms.version == 1 or arms.version > newest
        allowed = f"above {newest}: the site's arms have changed. Change those"
        require(is_newer, "arms.version", arms.version, allowed)
        version = max(newest + 1, arms.version)
        content = to_json_array(replace(arms, version=version).to_dict())
        number = {"newest-arms": np.array(version)}
        self._journal.put({**number, f"arms-{version}": content})
        self._state |= number
