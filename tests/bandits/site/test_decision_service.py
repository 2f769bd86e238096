"""A site's policy over HTTP: as safe as in a process, and clear about what is wrong."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from flwr_fbo import LinearBanditPolicy
from flwr_fbo.bandits import FedGOUCBSettings, RewardTimeout
from flwr_fbo.bandits.site.decision_service import DecisionService
from tests.support.policies import (
    ARMS,
    CONTEXT,
    MAKE_POLICY,
    SETTINGS,
    VECTORS,
    enrolled,
    neural_enrolled,
    settings_of,
)

JSON = {"Content-Type": "application/json"}


class Service:
    """A service that listens on a free port of this machine."""

    def __init__(self, folder: Path, **options: Any) -> None:
        app = DecisionService(folder, **options).app()
        config = uvicorn.Config(app, port=0, log_level="error", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    def ask(
        self,
        method: str,
        path: str,
        content: Any = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Return status and answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        connection.request(method, path, body, JSON if headers is None else headers)
        response = connection.getresponse()
        text = response.read().decode()
        is_json = response.headers.get("content-type") == "application/json"
        connection.close()
        return response.status, json.loads(text) if is_json else text

    def close(self) -> None:
        """Stop listening."""
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service of a site with three arms."""
    enrolled(tmp_path)
    service = Service(tmp_path)
    yield service
    service.close()


def test_it_chooses_and_learns(service: Service, tmp_path: Path) -> None:
    status, choice = service.ask("POST", "/choose", {"context": CONTEXT})
    assert status == 200
    assert choice["arm"] == ARMS.names[choice["index"]]
    names = {"ticket", "propensity", "expected", "width", "why"}
    assert choice.keys() == {"arm", "index", *names}
    reward = {"ticket": choice["ticket"], "value": 0.7}
    for _ in range(2):  # a retry
        assert service.ask("POST", "/reward", reward) == (200, reward)
    [decision] = LinearBanditPolicy.open(tmp_path).decisions()
    assert (decision.reward, decision.context) == (0.7, CONTEXT)
    rule = {"forbid": ["ward"], "floors": {"home": 0.2}, "explore": False}
    asked = {"context": CONTEXT, "eligible": ["ward", "home"], **rule}
    status, choice = service.ask("POST", "/choose", asked)
    assert (status, choice["arm"], choice["why"]) == (200, "home", "only arm")


def test_a_retry_with_its_key_gets_the_same(service: Service, tmp_path: Path) -> None:
    keyed = {**JSON, "Idempotency-Key": "visit-1"}
    asked = {"context": CONTEXT}
    first = service.ask("POST", "/choose", asked, keyed)
    assert service.ask("POST", "/choose", asked, keyed) == first
    assert service.ask("POST", "/choose", {**asked, "key": "visit-1"}) == first
    other = Service(tmp_path)
    assert other.ask("POST", "/choose", asked, keyed) == first
    other.close()
    status, answer = service.ask(
        "POST", "/choose", {"context": {**CONTEXT, "age": 3}}, keyed
    )
    assert status == 422
    assert "key='visit-1'" in answer["error"]
    status, answer = service.ask("POST", "/choose", {**asked, "key": "b"}, keyed)
    assert status == 400
    assert LinearBanditPolicy.open(tmp_path).num_trials == 1


VALUES: list[Any] = [None, True, -1, 2**70, 1e300, "x", [], [[]], {}, {"a": [1]}, [{}]]


def test_whatever_is_wrong_is_said(service: Service, tmp_path: Path) -> None:
    for path, field in (
        *(("/choose", name) for name in ("context", "eligible", "forbid")),
        *(("/choose", name) for name in ("floors", "explore", "key", "other")),
        *(("/reward", name) for name in ("ticket", "value", "other")),
    ):
        right = {"context": CONTEXT} if path == "/choose" else {"ticket": 0, "value": 1}
        for value in VALUES:
            status, answer = service.ask("POST", path, {**right, field: value})
            assert status in (200, 422), (path, field, value, answer)
            assert (status == 200) == ("error" not in answer)
    for age in VALUES:
        context = {**CONTEXT, "age": age}
        status, answer = service.ask("POST", "/choose", {"context": context})
        assert status in (200, 422), (age, answer)
    assert service.ask("POST", "/choose", {})[1] == {
        "error": "The field 'context' is missing."
    }
    before = LinearBanditPolicy.open(tmp_path).num_trials
    for content in (b"", b"{", b"[1]", b"NaN", b'{"context": NaN}', b"[" * 100_000):
        assert service.ask("POST", "/choose", content)[0] == 400
    assert service.ask("POST", "/choose", b" " * (2 << 20))[0] == 413
    for headers in ({}, {"Content-Type": "text/plain"}):
        assert service.ask("POST", "/choose", {"context": CONTEXT}, headers)[0] == 415
    assert service.ask("GET", "/choose")[0] == 405
    assert service.ask("GET", "/decisions")[0] == 404
    elsewhere = {**JSON, "Host": "evil.example"}
    assert service.ask("POST", "/choose", {"context": CONTEXT}, elsewhere)[0] == 400
    assert LinearBanditPolicy.open(tmp_path).num_trials == before


def test_a_late_reward_is_a_conflict(tmp_path: Path) -> None:
    encoder = SETTINGS.encoder
    settings = settings_of(encoder)
    object.__setattr__(settings, "reward_timeout", RewardTimeout(0.01, 0.0))
    enrolled(tmp_path, settings)
    service = Service(tmp_path)
    ticket = service.ask("POST", "/choose", {"context": CONTEXT})[1]["ticket"]
    time.sleep(0.02)
    status, answer = service.ask("POST", "/reward", {"ticket": ticket, "value": 1})
    service.close()
    assert status == 409
    assert "its time is over" in answer["error"]


def test_health_and_metrics(service: Service, tmp_path: Path) -> None:
    assert service.ask("GET", "/health") == (200, {"status": "ok", "decisions": 0})
    service.ask("POST", "/choose", {"context": CONTEXT})
    service.ask("POST", "/choose", {})
    status, text = service.ask("GET", "/metrics")
    assert status == 200
    lines = text.splitlines()
    assert "fbo_decisions_total 1" in lines
    assert "fbo_rewards_awaited 1" in lines
    assert 'fbo_requests_total{path="/choose",status="200"} 1' in lines
    assert 'fbo_requests_total{path="/choose",status="422"} 1' in lines


def test_without_a_journal_it_is_not_healthy(tmp_path: Path) -> None:
    service = Service(tmp_path, patience=0)
    status, answer = service.ask("GET", "/health")
    assert status == 503
    assert "no place in a study" in answer["error"]
    enrolled(tmp_path)
    assert service.ask("GET", "/health")[0] == 200
    service.close()


def test_many_ask_at_once(service: Service, tmp_path: Path) -> None:
    answers: list[Any] = []

    def ask(i: int) -> None:
        keyed = {**JSON, "Idempotency-Key": f"visit-{i // 2}"}
        answers.append(service.ask("POST", "/choose", {"context": CONTEXT}, keyed))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {status for status, _ in answers} == {200}
    assert sorted(a["ticket"] for _, a in answers) == sorted(2 * [*range(10)])
    assert LinearBanditPolicy.open(tmp_path).num_trials == 10


@pytest.mark.parametrize("bandit", MAKE_POLICY)
def test_it_serves_either_bandit(tmp_path: Path, bandit: str) -> None:
    policy = MAKE_POLICY[bandit](tmp_path)
    service = Service(tmp_path)
    keyed = {**JSON, "Idempotency-Key": "visit-1"}
    asked = {"context": VECTORS.tolist(), "forbid": ["0"], "floors": {"1": 0.1}}
    status, choice = service.ask("POST", "/choose", asked, keyed)
    assert (status, choice["arm"] in ("1", "2")) == (200, True)
    assert service.ask("POST", "/choose", asked, keyed) == (200, choice)
    reward = {"ticket": choice["ticket"], "value": 0.7}
    for _ in range(2):
        assert service.ask("POST", "/reward", reward) == (200, reward)
    assert service.ask("GET", "/health") == (200, {"status": "ok", "decisions": 1})
    assert "fbo_decisions_total 1" in service.ask("GET", "/metrics")[1]
    assert service.ask("POST", "/choose", {"context": [[1, 2]]})[0] == 422
    service.close()
    [decision] = policy.decisions()
    assert decision.reward == 0.7


def test_what_is_not_known_yet_is_null(tmp_path: Path) -> None:
    """In phase I of Fed-GO-UCB nothing is expected; JSON has no NaN."""
    neural_enrolled(tmp_path, FedGOUCBSettings(num_exploration=1))
    service = Service(tmp_path)
    status, choice = service.ask("POST", "/choose", {"context": VECTORS.tolist()})
    service.close()
    assert (status, choice["expected"], choice["why"]) == (200, None, "explored")
