"""The command ``flwr-fbo list``."""

from tests.support.command import invoke


def test_list() -> None:
    lines = invoke("list").output.splitlines()
    for name in ("digits", "landmine", "landmine-noisy", "synthetic"):
        assert sum(line.startswith(f" {name} ") for line in lines) == 1
    tasks = " ".join(lines).partition("Tasks of a TOML file: ")[2]
    assert {"digits", "synthetic"} <= set(tasks.removesuffix(".").split(", "))
