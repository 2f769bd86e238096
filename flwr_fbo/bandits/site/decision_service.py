"""A site's policy as an HTTP service: JSON in, JSON out.

    POST /choose    context, and what else `BanditPolicy.choose` takes
    POST /reward    ticket and value
    GET  /health    whether the journal can be used
    GET  /metrics   counts, in the text format of Prometheus

It has no login: it listens on this machine unless told otherwise. What it answers is
raw data of the site.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr_fbo._common.conversion import whole_number
from flwr_fbo._common.validation import require_known
from flwr_fbo.bandits.site.late_rewards import LateRewardError
from flwr_fbo.bandits.site.site_policies import open_policy
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.study.codec import StudyMismatchError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from flwr_fbo.bandits.site.bandit_policy import BanditPolicy

# Bytes of a request: a thousand actions of dimension 50, with room.
_LARGEST_BODY = 1 << 20
_CHOOSE = ("context", "eligible", "key", "forbid", "floors", "explore")
_REWARD = ("ticket", "value")
# What a browser sends as the host of a service on its own machine. Another name would
# be that of a page which has it lead here (DNS rebinding).
LOCAL_HOSTS = ("127.0.0.1", "localhost")


class _RefusedError(Exception):
    """A request that is refused, with its HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class DecisionService:
    """Answers requests by the policy of a site.

    Examples
    --------
    >>> from flwr_fbo.bandits.site.decision_service import DecisionService
    >>> service = DecisionService("/var/lib/fbo")  # opens it with the first request
    >>> app = service.app()  # an ASGI application, for any server of these

    Parameters
    ----------
    folder : str or Path
        The folder of the site's ``linear_bandit_app`` or ``neural_bandit_app``.
    patience : float
        Seconds, >= 0, to wait while another process has the journal.
    only_local : bool
        Refuse requests that name another host than this machine.
    policy : BanditPolicy, optional
        Policy that answers, such as a `NeuralBanditPolicy` with the site's own model.
        By default that of the folder, which is opened with the first request.
    """

    def __init__(
        self,
        folder: str | Path,
        patience: float = 10.0,
        only_local: bool = True,
        policy: BanditPolicy[Any] | None = None,
    ) -> None:
        self._folder, self._patience = folder, patience
        self._only_local = only_local
        # One request of this process at a time; the others wait here and not in the
        # line of the journal, where each would look again and again.
        self._lock = threading.Lock()
        self._policy = policy
        self._counts: Counter[tuple[str, int]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def app(self) -> Starlette:
        """Return the ASGI application.

        Raises
        ------
        ImportError
            If Starlette is not installed; the message names the extra.
        """
        try:
            from starlette.applications import Starlette
            from starlette.middleware import Middleware
            from starlette.middleware.trustedhost import TrustedHostMiddleware
            from starlette.routing import Route
        except ImportError as error:
            text = "serve needs Starlette: pip install 'flwr-fbo[serve]'."
            raise ImportError(text) from error
        routes = [
            Route("/choose", self._answering(self._choose), methods=["POST"]),
            Route("/reward", self._answering(self._reward), methods=["POST"]),
            Route("/health", self._answering(self._health), methods=["GET"]),
            Route("/metrics", self._answering(self._metrics), methods=["GET"]),
        ]
        hosts = LOCAL_HOSTS if self._only_local else ("*",)
        trusted = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
        return Starlette(routes=routes, middleware=[trusted])

    def _answering(
        self, work: Callable[[BanditPolicy[Any], dict[str, Any]], Any]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint: what it does, with all errors as answers."""
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse, PlainTextResponse

        def locked(given: dict[str, Any]) -> Any:
            with self._lock:
                if self._policy is None:
                    self._policy = open_policy(self._folder, self._patience)
                return work(self._policy, given)

        async def endpoint(request: Request) -> Response:
            began, status = time.monotonic(), 200
            try:
                given = await _given(request) if request.method == "POST" else {}
                content = await run_in_threadpool(locked, given)
            except _RefusedError as error:
                status, content = error.status, {"error": str(error)}
            except LateRewardError as error:
                status, content = 409, {"error": str(error)}
            except ValueError as error:
                status, content = 422, {"error": str(error)}
            except (JournalError, StudyMismatchError) as error:
                status, content = 503, {"error": str(error)}
            self._counts[request.url.path, status] += 1
            self._seconds[request.url.path] += time.monotonic() - began
            if isinstance(content, str):
                return PlainTextResponse(content)
            again = {"Retry-After": "1"} if status == 503 else {}
            return JSONResponse(content, status, headers=again)

        return endpoint

    def _choose(
        self, policy: BanditPolicy[Any], given: dict[str, Any]
    ) -> dict[str, Any]:
        context = _required(given, "context", _CHOOSE)
        others = {n: v for n, v in given.items() if n != "context" and v is not None}
        choice = vars(policy.choose(context, **others))
        # JSON has no NaN: what is not known yet is null.
        return {n: None if v != v else v for n, v in choice.items()}

    def _reward(
        self, policy: BanditPolicy[Any], given: dict[str, Any]
    ) -> dict[str, Any]:
        given.pop("key", None)  # a ticket is one already
        ticket = _required(given, "ticket", _REWARD)
        value = _required(given, "value", _REWARD)
        policy.reward(whole_number("ticket", ticket), value)
        return {"ticket": ticket, "value": value}

    def _health(self, policy: BanditPolicy[Any], _: dict[str, Any]) -> dict[str, Any]:
        return {"status": "ok", "decisions": policy.num_trials}

    def _metrics(self, policy: BanditPolicy[Any], _: dict[str, Any]) -> str:
        """Return counts of the site, and of this process's requests."""
        summary = policy.summary()
        of_site = {
            "decisions_total": summary.num_trials,
            "rewards_awaited": summary.num_awaited,
            "rewards_timed_out_total": summary.num_timed_out,
            "releases_total": summary.num_releases,
            "epsilon_spent": summary.epsilon_spent,
        }
        lines = []
        for name, value in of_site.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE fbo_{name} {kind}", f"fbo_{name} {value:g}"]
        lines.append("# TYPE fbo_requests_total counter")
        for (path, status), count in sorted(self._counts.items()):
            labels = f'path="{path}",status="{status}"'
            lines.append(f"fbo_requests_total{{{labels}}} {count}")
        lines.append("# TYPE fbo_request_seconds_total counter")
        for path, seconds in sorted(self._seconds.items()):
            lines.append(f'fbo_request_seconds_total{{path="{path}"}} {seconds:g}')
        return "\n".join([*lines, ""])


async def _given(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request, with its key, if it has one."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    # A page that a browser shows can send other types to this machine, but not this
    # one, without asking first.
    if kind != "application/json":
        raise _RefusedError(415, "Content-Type must be application/json.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST_BODY:
            raise _RefusedError(413, f"A request has at most {_LARGEST_BODY} bytes.")
    try:
        given = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _RefusedError(400, f"The body is not JSON: {error}.") from error
    if not isinstance(given, dict):
        raise _RefusedError(400, "The body must be a JSON object.")
    key = request.headers.get("idempotency-key")
    if key is not None:
        if given.get("key", key) != key:
            text = "Idempotency-Key and the body's key differ."
            raise _RefusedError(400, text)
        given["key"] = key
    return given


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def _required(given: dict[str, Any], field: str, known: tuple[str, ...]) -> Any:
    """Return a field that a request must have; all others must be known."""
    for name in given:
        require_known("field", name, known)
    if field not in given:
        raise _RefusedError(422, f"The field {field!r} is missing.")
    return given[field]
