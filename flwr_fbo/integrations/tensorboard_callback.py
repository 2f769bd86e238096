"""TensorBoard: event files for each study."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from flwr_fbo._common.validation import check_folder
from flwr_fbo.integrations.tracked import Tracker
from flwr_fbo.study.callbacks import Started


class TensorBoardCallback(Tracker):
    """Writes TensorBoard's files: settings, counts, epsilon, and what is recommended.

    Each study has a folder of its own in ``folder``, named by method and study; after a
    restart it is the same. Scalars have the round, or the number of the rung, as step.
    Settings are texts. PyTorch and TensorFlow are not needed; where PyTorch is
    installed, tensorboardX imports it.

    Examples
    --------
    >>> from flwr_fbo.integrations import TensorBoardCallback
    >>> TensorBoardCallback("/srv/tensorboard").folder.name
    'tensorboard'

    Parameters
    ----------
    folder : str or Path
        An absolute path, as for ``tensorboard --logdir``.

    Raises
    ------
    ValueError
        If the folder is not an absolute path.
    ImportError
        If tensorboardX is not installed; the message names the extra.
    """

    def __init__(self, folder: str | Path) -> None:
        checked = check_folder("folder", folder)
        if checked is None:
            raise ValueError("folder=None is not allowed: an absolute path.")
        try:
            import tensorboardX
        except ImportError as error:
            raise ImportError(
                "TensorBoardCallback needs tensorboardX: "
                "pip install 'flwr-fbo[tensorboard]'."
            ) from error
        self._tensorboard: Any = tensorboardX
        self.folder = checked
        self._writer: Any = None

    def on_start(self, started: Started) -> None:
        """Begin a file in the study's folder, and write the settings."""
        self._close()
        folder = self.folder / f"{started.method}-{started.study}"
        folder.mkdir(parents=True, exist_ok=True)
        # Not SummaryWriter: its flush() does not wait for what is in its queue.
        # A name has the second: a quick restart would overwrite the file.
        self._writer = self._tensorboard.event_file_writer.EventsWriter(
            str(folder / "events"), f".{secrets.token_hex(4)}"
        )
        super().on_start(started)

    def on_end(self, result: Any) -> None:
        """Write the setting that is recommended or chosen, and close the file."""
        super().on_end(result)
        self._close()

    def log(
        self,
        title: str,
        texts: Mapping[str, str],
        numbers: Mapping[str, float],
        step: int,
    ) -> None:
        """Write it to the file at once: the process may be killed."""
        if self._writer is None:
            raise RuntimeError("There is no event file for this study.")
        make, event = self._tensorboard.summary, self._tensorboard.proto.event_pb2.Event
        summaries = [make.scalar(name, number) for name, number in numbers.items()]
        if title:
            # A table, as TensorBoard shows texts.
            rows = [
                f"| {_cell(name)} | {_cell(text)} |" for name, text in texts.items()
            ]
            table = "\n".join(["| name | value |", "| --- | --- |", *rows])
            summaries.append(make.text(title, table))
        for summary in summaries:
            self._writer.write_event(
                event(wall_time=time.time(), step=step, summary=summary)
            )
        self._writer.flush()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


# What Markdown reads as more than a character; underscores within a word are not.
_MARKS = re.compile(r"[\\`*|]|(?<=\])\(|(?<!\w)_+|_+(?!\w)")


def _cell(text: str) -> str:
    """Return a text of one line that is shown as it is."""
    shown = escape(" ".join(text.splitlines()), quote=False)
    return _MARKS.sub(lambda found: "".join(f"\\{c}" for c in found[0]), shown)
