"""A stranger's path, timed: from a fresh clone to a study of one's own.

    python tests/support/strangers_path.py

clones this repository into a temporary folder and does there what the documentation
says, with nothing but its pages: the commands of "Install" (which run
the demo), the Python of "Your own objective" (a scikit-learn model on five clients, in
the in-process grid), and the commands of "Run experiments" that look at results.
It needs git, make and a package registry. A step that fails ends it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOOKS = ("flwr-fbo show ", "flwr-fbo report ")


def main() -> None:
    """Walk it, and print how long each step took."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "flwr_fbo")
        _step("clone", f"git clone --quiet {ROOT} {clone}", Path(folder))
        docs = clone / "docs"
        index = (docs / "index.md").read_text()
        install = _commands(index.partition("\n## Install\n")[2])
        # `make` first makes an environment; then its programs are found.
        for command in sorted(install, key=lambda c: not c.startswith("make ")):
            _step(command, command, clone)
        script = Path(folder, "mine.py")
        script.write_text(_python(docs / "app/your-own-objective.md"))
        _step("your own objective, on 5 clients", f"python {script}", clone)
        experiments = (docs / "research/experiments.md").read_text()
        looks = [c for c in _commands(experiments) if _looks(c)]
        assert looks, "the tutorial looks at no results"
        for command in looks:
            _step(command, command, clone)


def _commands(text: str) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [c for block in blocks for c in re.findall(r"^\$ (.*)$", block, re.M)]


def _python(page: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))


def _looks(command: str) -> bool:
    return command.startswith(LOOKS) and "digits-start" in command  # the demo's


def _step(name: str, command: str, folder: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["PATH"] = f"{folder / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
    begin = time.perf_counter()
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(f"{time.perf_counter() - begin:7.1f} s  {name}", flush=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{command} ended with {done.returncode}")


if __name__ == "__main__":
    main()
