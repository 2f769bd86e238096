"""What `tests/test_deployment_page.py` and others share."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.documents import (
    Command,
    blocks_of,
    commands_of,
)


def commands_under(page: Path, containers: bool) -> Iterator[Command]:
    """Yield the page's commands: those of its section on containers, or the others."""
    heading = ""
    for block in blocks_of(page):
        assert block.language == "console", block
        heading = ([heading, *re.findall("^## (.*)", block.gap, re.M)])[-1]
        if (heading == "In containers") == containers:
            yield from commands_of(block)
