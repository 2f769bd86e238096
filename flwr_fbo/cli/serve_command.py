"""``flwr-fbo serve FOLDER``: a site's policy as an HTTP service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flwr_fbo.bandits.site.decision_service import LOCAL_HOSTS, DecisionService
from flwr_fbo.cli.output import plain_errors


def serve(
    folder: Path,
    host: Annotated[
        str, typer.Option(help="Address to listen on; this machine's own by default.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")
    ] = 8470,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for the journal.")
    ] = 10.0,
) -> None:
    r"""Decide for programs that ask over HTTP.

    FOLDER is the folder of a site that plays a bandit: of FedUCB or, where the study
    has a network, of FedGOUCB. POST /choose and POST /reward take and give JSON; GET
    /health and GET /metrics (Prometheus) watch. Several services may have the same
    folder. Needs the extra `serve`.

    There is no login and no encryption, and answers are the site's raw data. To serve
    other machines, put a proxy with both in front.

    Examples
    --------
    $ flwr-fbo serve /var/lib/fbo
    $ curl 127.0.0.1:8470/choose -H 'Content-Type: application/json' \
        -H 'Idempotency-Key: visit-1234' -d '{"context": {"age": 71}}'
    """
    is_local = host in LOCAL_HOSTS
    with plain_errors(ValueError, ImportError):
        try:
            import uvicorn
        except ImportError as error:
            text = "serve needs Uvicorn: pip install 'flwr-fbo[serve]'."
            raise ImportError(text) from error
        app = DecisionService(folder, patience, only_local=is_local).app()
        if not is_local:
            typer.echo(
                f"WARNING: whoever reaches {host}:{port} can decide, and read raw "
                "data. There is no login and no encryption.",
                err=True,
            )
        uvicorn.run(app, host=host, port=port, ws="none", access_log=False)
