"""The trials of a tuner that keep their rounds in files."""

from __future__ import annotations

import shutil
from collections.abc import Collection

from flwr_fbo.tuner.records.trials_record import CLIENT_STATE, TrialsRecord, stored
from flwr_fbo.tuner.trials.kept_rounds import KeptRounds
from flwr_fbo.tuner.trials.trial_thread import THREAD_NAME


class KeptTrials:
    """The rounds of all trials of a tuner that goes on; without a folder, of none.

    An app whose clients keep something in ``context.state`` is trained again from its
    start: in another run that state is gone.

    Parameters
    ----------
    record : TrialsRecord
        The tuner's, whose folder has the files.
    """

    def __init__(self, record: TrialsRecord) -> None:
        self._folder = record.folder and record.folder / "kept"
        self._record = record
        self._may_keep = stored(record.journal, CLIENT_STATE) is None

    def rounds(self, number: int) -> KeptRounds | None:
        """Return the rounds of a trial; None: they are not kept."""
        if self._folder is None or not self._may_keep:
            return None
        folder = self._folder / f"{THREAD_NAME}{number}"
        return KeptRounds(folder, lambda: self._may_keep)

    def stop(self) -> None:
        """Keep nothing any more: clients keep a state."""
        self._may_keep = False
        # On record, as a later run cannot see it before it has asked clients.
        self._record.save(CLIENT_STATE, True)
        self.end_all_but(())

    def end_all_but(self, alive: Collection[int]) -> None:
        """Remove the files of trials that have ended."""
        if self._folder is None or not self._folder.exists():
            return
        names = {f"{THREAD_NAME}{number}" for number in alive}
        for folder in self._folder.iterdir():
            if folder.name not in names:
                shutil.rmtree(folder)
