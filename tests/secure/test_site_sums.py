"""Who a site is in secure sums: files of its node config, and what they allow."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from flwr_fbo._common.errors import NodeConfigError, RefusedError
from flwr_fbo.secure.roster import SigningKey
from flwr_fbo.secure.site_sums import SumIdentity
from tests.support.secure_studies import AGGREGATION, Keys, fed_vote, make_keys


def _context(config: dict[str, Any]) -> Context:
    return Context(1, 1, config, RecordDict(), {})


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return make_keys(tmp_path)


def _config(keys: Keys, slot: int = 0) -> dict[str, Any]:
    return {"fbo-roster": str(keys.roster_path), "fbo-key": str(keys.key_path(slot))}


def test_the_files_of_the_node_config_are_read(keys: Keys) -> None:
    found = SumIdentity.of(_context(_config(keys, 3)).node_config)
    assert found.roster == keys.roster
    assert found.key is not None
    assert found.key.public == keys.roster.keys[3]
    assert SumIdentity.of(_context({}).node_config) == SumIdentity()


@pytest.mark.parametrize("left", ["fbo-roster", "fbo-key"])
def test_both_files_are_given_or_neither(left: str, keys: Keys) -> None:
    config = {left: _config(keys)[left]}
    with pytest.raises(NodeConfigError, match="are given together") as error:
        SumIdentity.of(_context(config).node_config)
    assert error.value.public == "fbo-roster and fbo-key are given together in the " + (
        "node config."
    )


@pytest.mark.parametrize("name", ["fbo-roster", "fbo-key"])
@pytest.mark.parametrize(
    ("value", "text"),
    [("relative", "an absolute path"), ("/nowhere/file", "No such file")],
)
def test_a_file_that_is_not_there_is_named_to_the_site_alone(
    name: str, value: str, text: str, keys: Keys
) -> None:
    with pytest.raises(NodeConfigError, match=text) as error:
        SumIdentity.of(_context({**_config(keys), name: value}).node_config)
    assert name in error.value.public
    assert value not in error.value.public


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_key_that_others_can_read_is_refused(mode: int, keys: Keys) -> None:
    keys.key_path(0).chmod(mode)
    with pytest.raises(NodeConfigError, match="chmod 600") as error:
        SumIdentity.of(_context(_config(keys)).node_config)
    assert error.value.public == "fbo-key cannot be used."


@pytest.mark.parametrize("text", ["", '{"keys": {}, "seed": "00"}'])
@pytest.mark.parametrize("name", ["fbo-roster", "fbo-key"])
def test_a_malformed_file_is_refused(name: str, text: str, keys: Keys) -> None:
    config = _config(keys)
    Path(config[name]).write_text(text)
    with pytest.raises(NodeConfigError) as error:
        SumIdentity.of(_context(config).node_config)
    assert error.value.public == f"{name} cannot be used."


def _study(keys: Keys | None, secure: bool = True) -> Any:
    options = AGGREGATION.colluding, AGGREGATION.threshold, AGGREGATION.honest
    roster = None if keys is None else keys.roster_path
    aggregation = type(AGGREGATION)(*options, roster=roster) if secure else None
    strategy = fed_vote(aggregation=aggregation)
    strategy.plan(3)
    return strategy.study


def test_the_roster_that_a_site_pins_decides(keys: Keys, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_keys(tmp_path / "other")
    pinned = SumIdentity.of(_context(_config(keys)).node_config)
    pinned.check(_study(keys).secure, 0)
    pinned.check(_study(keys).secure, -1)
    for study, text in (
        (_study(other), "does not have the roster that it pins"),
        (_study(None), "does not have the roster that it pins"),
        (_study(None, secure=False), "the study has no secure aggregation"),
    ):
        with pytest.raises(RefusedError, match=text):
            pinned.check(study.secure, 0)


def test_a_key_is_that_of_the_sites_slot(keys: Keys) -> None:
    swapped = SumIdentity.of(_context(_config(keys, 3)).node_config)
    assert swapped.slot == 3
    with pytest.raises(RefusedError, match=r"slot is 0, .* its key for slot 3"):
        swapped.check(_study(keys).secure, 0)


def test_a_key_that_the_roster_lacks_is_refused(keys: Keys) -> None:
    SigningKey.draw().save(keys.key_path(0))
    with pytest.raises(
        NodeConfigError, match=r"fbo-key: public key=.* a key of the roster"
    ):
        SumIdentity.of(_context(_config(keys)).node_config)


def test_a_site_without_a_roster_takes_no_part_under_one(keys: Keys) -> None:
    SumIdentity().check(_study(None).secure, 0)
    SumIdentity().check(_study(None, secure=False).secure, 0)
    with pytest.raises(RefusedError, match="give fbo-roster and fbo-key"):
        SumIdentity().check(_study(keys).secure, 0)
