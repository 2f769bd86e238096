"""Data frames of pandas, which is an extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def frame_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Return a ``pandas.DataFrame``; the columns are there without rows, too.

    Raises
    ------
    ImportError
        If pandas is not installed; the message names the extra.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            "to_dataframe needs pandas: pip install 'flwr-fbo[pandas]'."
        ) from error
    return pd.DataFrame([dict(row) for row in rows], columns=list(columns))
