"""Logs of other systems, as tables: a data frame, or a CSV or Parquet file."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import float_array, mappings
from flwr_fbo._common.text import ranges_text
from flwr_fbo._common.validation import refuse, require, require_known
from flwr_fbo.bandits.site.decision import Decision

# Columns that are no context, beside those that the caller names.
_NUMBER, _TIME, _ELIGIBLE, _CONTEXT = "number", "time", "eligible", "context"
_EXTRA = "pip install 'flwr-fbo[tables]'"
# A table of more arms, or contexts with more values, would take too much memory.
_MOST_VALUES = 200_000_000


@dataclass(frozen=True, eq=False)
class TableLog:
    """Decisions of a table; what `evaluate_policy` takes.

    Attributes
    ----------
    decisions : list of Decision
        With numbers from 0, in the order of the table, if it has no column "number".
        An arm's features are 1 and the context's values, in coordinates of its own.
    propensities : str
        How propensities were estimated; empty if they are on record.

    Examples
    --------
    >>> from flwr_fbo.bandits.off_policy.tables import TableLog
    >>> TableLog([], "").propensities
    ''
    """

    decisions: list[Decision]
    propensities: str

    def __iter__(self) -> Iterator[Decision]:
        """Iterate over the decisions."""
        return iter(self.decisions)


def read_table(
    table: Any,
    *,
    action: str = "action",
    reward: str = "reward",
    propensity: str | None = "pscore",
    context: Sequence[str] | None = None,
) -> TableLog:
    """Return the log of a table of context, action, reward and propensity.

    Columns "number", "time", "eligible" (the arms that could be chosen) and "context"
    (a mapping, or JSON) are optional and as in `decisions_frame`, whose frames can be
    read. Without "eligible" every action of the table could be chosen in every row. A
    missing reward is awaited.

    Without propensities they are estimated: from the context by scikit-learn's logistic
    regression, or without a context as each action's share of the rows. Intervals do
    not cover the error of that. It can be large if the log's policy looked at more than
    the context, or changed while it learned.

    Examples
    --------
    >>> import pandas as pd
    >>> from flwr_fbo.bandits import evaluate_policy, read_table
    >>> rows = 100 * [("ward", 71, 0.0, 0.4), ("home", 30, 1.0, 0.6)]
    >>> table = pd.DataFrame(rows, columns=["place", "age", "recovered", "pscore"])
    >>> log = read_table(table, action="place", reward="recovered")
    >>> found = evaluate_policy(log, {"home": 1.0}, reward_range=(0, 1))
    >>> print(f"{found.snips.value:.2f}")
    1.00

    Parameters
    ----------
    table : pandas.DataFrame, or path of a CSV or Parquet file; or a list of these
        One log. Several tables are put together, and need a column "number" that tells
        decisions apart.
    action, reward : str
        Columns of the chosen arm and its reward.
    propensity : str, optional
        Column of the probability, in (0, 1], with which the action was chosen. None
        estimates it.
    context : sequence of str, optional
        Columns of the context: numbers, or text. By default the column "context", or
        without it all other columns.

    Raises
    ------
    ValueError
        If a column is missing, a cell is not allowed, or tables share a decision.
    ImportError
        If a file, or propensities to estimate, need a library that is not installed.
    """
    tables = list(table) if isinstance(table, list | tuple) else [table]
    require(len(tables) > 0, "table", table, "a table or more")
    parts = [_rows(one) for one in tables]
    rows = [row for part in parts for row in part]
    require(len(rows) > 0, "len(table)", 0, "a row or more")
    columns = list(rows[0])
    for row in rows:
        require(list(row) == columns, "columns", list(row), f"{columns}, in all tables")
    for column in (action, reward, *(context or ())):
        require_known("column", column, columns)
    if propensity is not None and propensity not in columns:
        expected = f"one of {columns}. None estimates propensities"
        refuse("propensity", propensity, expected)
    numbers = _numbers(tables, parts)
    actions = [str(row[action]) for row in rows]
    listed = [_eligible(row.get(_ELIGIBLE)) for row in rows]
    # An arm that was never chosen is a possible choice of a policy all the same.
    arms = sorted({*actions, *(name for names in listed for name in names or ())})
    eligible = [tuple(arms) if names is None else names for names in listed]
    taken = {action, reward, propensity, _NUMBER, _TIME, _ELIGIBLE}
    contexts = [_context(row, context, taken) for row in rows]
    values = _encoded(contexts)
    if propensity is None:
        propensities, how = _estimated(actions, arms, eligible, values)
    else:
        propensities = float_array(propensity, [row[propensity] for row in rows])
        how = ""
    rewards = float_array(reward, [row[reward] for row in rows])
    times = float_array(_TIME, [row.get(_TIME, i) for i, row in enumerate(rows)])
    size = sum(map(len, eligible)) * len(arms) * (1 + values.shape[1])
    expected = f"at most {_MOST_VALUES}: arms of all rows x arms x values of a context"
    require(size <= _MOST_VALUES, "features of the table", size, expected)
    decisions = []
    for i, names in enumerate(eligible):
        where = f"action of decision {numbers[i]}"
        require(actions[i] in names, where, actions[i], f"one of {list(names)}")
        of_arms = np.eye(len(arms))[[arms.index(name) for name in names]]
        decision = Decision(
            number=numbers[i],
            time=float(times[i]),
            context=contexts[i],
            arms=names,
            features=np.kron(of_arms, [1.0, *values[i]]),
            chosen=names.index(actions[i]),
            propensity=float(propensities[i]),
            reward=float(rewards[i]),
        )
        decisions.append(decision)
    return TableLog(decisions, how)


def _rows(table: Any) -> list[Mapping[str, Any]]:
    """Return a table's rows."""
    if isinstance(table, str | Path):
        path = Path(table)
        readers = {".csv": "read_csv", ".parquet": "read_parquet"}
        expected = f"a file that ends in {' or '.join(readers)}"
        require(path.suffix in readers, "table", str(table), expected)
        require(path.is_file(), "table", str(table), "a file that exists")
        try:
            import pandas as pd

            table = getattr(pd, readers[path.suffix])(path)
        except ImportError as error:
            raise ImportError(f"{path.name} needs pandas and pyarrow: {_EXTRA}.") from (
                error
            )
        except pd.errors.ParserError as error:
            raise ValueError(f"{path.name} is no CSV file: {error}.") from error
    return mappings("table", table)


def _numbers(tables: Sequence[Any], parts: Sequence[Sequence[Any]]) -> list[int]:
    """Return the decisions' numbers; refuse those that several tables have."""
    has_numbers = all(_NUMBER in part[0] for part in parts if part)
    if not has_numbers:
        expected = f"1 without a column {_NUMBER!r}, as copies could not be told"
        require(len(tables) == 1, "number of tables", len(tables), expected)
        return list(range(len(parts[0])))
    numbers = []
    for part in parts:
        of_table = float_array(_NUMBER, [row[_NUMBER] for row in part])
        for number in of_table[of_table != np.floor(of_table)].tolist():
            refuse(_NUMBER, number, "an integer")
        numbers.append([int(number) for number in of_table])
    names = [
        str(table) if isinstance(table, str | Path) else f"table {i}"
        for i, table in enumerate(tables)
    ]
    for i, name in enumerate(names):
        for j in range(i):
            shared = sorted(set(numbers[i]) & set(numbers[j]))
            if shared:
                expected = f"in one table, and {names[j]} and {name} share"
                both = f"{expected} {len(shared)} decisions"
                raise ValueError(
                    f"number={ranges_text(shared)} is not allowed: {both}."
                )
    return [number for part in numbers for number in part]


def _eligible(cell: Any) -> tuple[str, ...] | None:
    """Return the names of a cell, a list or its text; None for an empty cell."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if isinstance(cell, str):
        cell = _parsed(_ELIGIBLE, cell)
    is_list = isinstance(cell, Iterable) and not isinstance(cell, str | Mapping)
    require(is_list, _ELIGIBLE, cell, "a list of arms")
    names = tuple(map(str, cell))
    are_different = 0 < len(names) == len(set(names))
    require(are_different, _ELIGIBLE, names, "different arms, at least one")
    return names


def _context(
    row: Mapping[str, Any], columns: Sequence[str] | None, taken: set[str | None]
) -> Mapping[str, Any] | None:
    """Return a row's context, None without one."""
    if columns is not None:
        return {name: row[name] for name in columns} or None
    if _CONTEXT in row:
        cell = row[_CONTEXT]
        if isinstance(cell, str):
            cell = _parsed(_CONTEXT, cell)
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return None
        require(isinstance(cell, Mapping), _CONTEXT, cell, "a mapping, or JSON")
        return dict(cell)
    return {name: cell for name, cell in row.items() if name not in taken} or None


def _parsed(field: str, cell: str) -> Any:
    """Return the value of a text: JSON, or what pandas writes for lists and mappings.

    `ast.literal_eval` reads literals of Python and runs nothing.
    """
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(cell)
        except (ValueError, SyntaxError):
            continue
    refuse(field, cell, "JSON")


def _encoded(contexts: Sequence[Mapping[str, Any] | None]) -> FloatArray:
    """Return contexts as numbers, shape (n, values).

    Numbers are centred and scaled by their deviation; each other text, and a missing
    number, has a value of its own.
    """
    names = list(dict.fromkeys(name for one in contexts for name in one or ()))
    columns = []
    for name in names:
        cells = [(one or {}).get(name) for one in contexts]
        numbers = np.array([_number(cell) for cell in cells])
        known = ~np.isnan(numbers)
        if known.any():
            centred = np.where(known, numbers - numbers[known].mean(), 0.0)
            columns.append(centred / (numbers[known].std() or 1.0))
        texts = np.array([str(cell) for cell in cells])
        columns += [~known & (texts == text) for text in np.unique(texts[~known])]
    return np.array(columns, dtype=float).T.reshape(len(contexts), len(columns))


def _number(cell: Any) -> float:
    is_number = isinstance(cell, int | float | np.number | np.bool_)
    return float(cell) if is_number and math.isfinite(cell) else math.nan


def _estimated(
    actions: Sequence[str],
    arms: Sequence[str],
    eligible: Sequence[tuple[str, ...]],
    values: FloatArray,
) -> tuple[FloatArray, str]:
    """Return estimated propensities of the actions, and how they were estimated."""
    index = {arm: i for i, arm in enumerate(arms)}
    chosen = np.array([index[arm] for arm in actions])
    shares = np.zeros((len(actions), len(arms)))
    if values.shape[1] and len(np.unique(chosen)) > 1:
        try:
            from sklearn.linear_model import LogisticRegression
        except ImportError as error:
            text = "The estimate of propensities needs scikit-learn"
            raise ImportError(f"{text}: {_EXTRA}.") from error
        model = LogisticRegression(max_iter=1000).fit(values, chosen)
        shares[:, model.classes_] = model.predict_proba(values)
        how = "logistic regression on the context"
    else:
        shares += np.bincount(chosen, minlength=len(arms)) / len(chosen)
        how = "the share of each arm"
    # Where an arm was not eligible, the others share its probability.
    totals = [
        shares[i, [index[name] for name in names]].sum()
        for i, names in enumerate(eligible)
    ]
    # Rounding may leave a share of the only eligible arm above 1.
    own = shares[np.arange(len(chosen)), chosen]
    return np.minimum(own / np.array(totals), 1.0), how
