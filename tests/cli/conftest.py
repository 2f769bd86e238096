"""Fixtures of the tests of commands."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.pages import page


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], str]:
    """Return what draws the page of some results, once: tests only read it."""
    folder = tmp_path_factory.mktemp("pages")

    @cache
    def drawn(results: Path) -> str:
        return page(results, folder / "page.html")

    return drawn
