"""Whole studies of the landmine fields on which no prior of ours was chosen."""

from __future__ import annotations

from benchmarks.measure import Section
from benchmarks.problems import landmine
from benchmarks.suggestion import BUDGET, HELD_TO_BAR, OURS, compare_studies
from flwr_fbo.datasets.landmine import NUM_FIELDS

FIELDS = range(0, NUM_FIELDS, 2)


def measure(quick: bool) -> list[Section]:
    """Return the section, or none without the data."""
    num_seeds = 1 if quick else 5
    known = [landmine(field) for field in FIELDS]
    fields = [field for field in known if field is not None]
    if not fields:
        return []
    cases = [(field, seed) for field in fields for seed in range(num_seeds)]
    text = (
        f"As above, of the {len(fields)} fields on which no prior was chosen, "
        f"{num_seeds} seeds each: medians, means and standard errors are over these "
        f"{len(cases)} studies."
    )
    rows = compare_studies("even landmine fields", cases, [*HELD_TO_BAR, OURS])
    title = f"Studies of {BUDGET} evaluations of landmine fields of even numbers"
    return [Section(title, text, rows)]
