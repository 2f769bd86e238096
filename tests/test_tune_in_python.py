"""The diffs of the quickstart in Python make an app tune itself."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from flwr_fbo import InProcessGrid
from flwr_fbo.tuner.tune_settings import server_context
from flwr_fbo.tuning import FederationResult
from tests.support.documents import ROOT, blocks_of
from tests.support.tuned_apps import legacy_app, message_app

PAGE = ROOT / "docs/app/tune-in-python.md"
RUN_CONFIG: dict[str, Any] = {
    "num-server-rounds": 6,
    "learning-rate": 0.001,
    "optimizer": "fast",
    "nesterov": False,
}


def _changed(text: str, diff: str) -> str:
    """Return a file after a diff whose hunks have no line numbers."""
    _, *hunks = diff.split("@@\n")
    for hunk in hunks:
        old, new = (
            "".join(f"{x[1:]}\n" for x in hunk.splitlines() if x[:1] in (" ", sign))
            for sign in "-+"
        )
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("number", [0, 1])
def test_an_app_with_the_diffs_tunes_itself(
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With `@app.main`, and with a `server_fn` and a `NumPyClient`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    diffs = [block.text for block in blocks_of(PAGE) if block.language == "diff"]
    assert len(diffs) == 3
    server_diff, client_diff = diffs[number], diffs[2]
    folder = [message_app, legacy_app][number](tmp_path / "app")
    server, client = (next(folder.glob(f"*/{n}_app.py")) for n in ("server", "client"))
    server.write_text(_changed(server.read_text(), server_diff))
    if number == 0:  # the same change, as the text below the diff has it
        [line] = re.findall(r"`(app = ClientApp\(.*\))`", PAGE.read_text())
        old = "from flwr.clientapp import ClientApp\n\napp = ClientApp()\n"
        new = "from flwr.clientapp import ClientApp\n\nfrom flwr_fbo import tuner_mod\n"
        assert client.read_text().count(old) == 1
        client.write_text(client.read_text().replace(old, f"{new}\n{line}\n"))
    else:
        client.write_text(_changed(client.read_text(), client_diff))
    package = server.parent.name
    client_app = importlib.import_module(f"{package}.client_app").app
    server_app = importlib.import_module(f"{package}.server_app").app
    grid = InProcessGrid(client_app, 20, run_config=RUN_CONFIG)
    server_app(grid, server_context(RUN_CONFIG))
    printed = capsys.readouterr().out
    assert "Chosen of 8 trials: {'learning-rate': " in printed
    assert (
        "epsilon 2.00 per client (message or zeros, delta 0.001; 4.71 if replaced"
        in printed
    )


def test_what_the_page_says_of_a_result_is_there() -> None:
    names = re.findall(r"`result\.(\w+)(?:\(\))?` \|", PAGE.read_text())
    assert len(names) == 8
    known = {*dir(FederationResult), *FederationResult.__dataclass_fields__}
    assert [name for name in names if name not in known] == []


@pytest.mark.parametrize("name", ["tune-in-python", "tune-your-fedavg"])
def test_a_tutorial_is_short(name: str) -> None:
    assert len((ROOT / f"docs/app/{name}.md").read_text().split()) <= 1200
