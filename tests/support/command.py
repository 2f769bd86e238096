"""The command line, as the tests of its commands call it."""

from typing import Any

from typer.testing import CliRunner

from flwr_fbo.cli import app


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


def one_line_error(result: Any) -> str:
    assert result.exit_code == 1
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return str(result.output).splitlines()[-1]
