"""Tables of experiments fit the terminal."""

from pathlib import Path

from tests.support.command import invoke


def test_a_table_with_long_headings_still_names_its_methods() -> None:
    figure = Path(__file__).parents[3] / "experiments/dp-fts-de/fig2c-functions.jsonl"
    said = invoke("show", str(figure)).stdout
    assert max(map(len, said.splitlines())) <= 80
    names = [line[1:12].strip() for line in said.splitlines()]
    assert {"random", "FTS-DE", "TS", "q = 0.15", "q = 0.5"} <= {*names}
    assert "± one standard error over 4 functions, 20 seeds in all." in said
