"""The README's Python runs as it is written."""

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parents[1] / "README.md"


def test_the_snippet_runs_with_real_noise() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, str(README), "exec"), names)
    spent = names["result"].privacy_spent
    assert set(names["result"].recommended) == {"C", "gamma"}
    assert spent.num_releases == 5
    assert 0 < spent.epsilon < 10
    assert names["strategy"].server.release.private
