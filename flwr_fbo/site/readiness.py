"""Findings about a site's readiness, for its operator.

It reads the node config as an app at the site does, and the same files, with the same
code. Nothing is changed but what opening a ledger changes: one of an older schema is
upgraded, and the charge that a killed process had noted, and not made, is made.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, ParamSpec

from flwr.app import Context, RecordDict

from flwr_fbo._common.errors import NodeConfigError, RefusedError
from flwr_fbo._common.files import why_untrusted
from flwr_fbo._common.text import counted
from flwr_fbo._common.validation import require_choice, require_int
from flwr_fbo._common.version import __version__
from flwr_fbo.journal.file_formats import JOURNAL, LEDGER
from flwr_fbo.journal.journal_file import JournalError, has_journal
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.gaussian import gaussian_mu
from flwr_fbo.privacy.guarantee import CLIENT, EXAMPLE, Guarantee, Protects
from flwr_fbo.privacy.spending_ledger import (
    DEFAULT_DELTA,
    FILE_NAME,
    Charge,
    Facts,
    Promise,
    SpendingLedger,
)
from flwr_fbo.secure import SumIdentity
from flwr_fbo.site.gate import Gate
from flwr_fbo.site.limits import NO_LIMITS, Limits, limits_text
from flwr_fbo.site.node_config_limits import is_our_entry, node_limits
from flwr_fbo.site.proofs import check_journals, check_kept
from flwr_fbo.site.site_journal import (
    configured_folder,
    configured_slot,
)
from flwr_fbo.study.codec import PROTOCOL_VERSION
from flwr_fbo.study.conditions import totals_text

# Less than this holds no journal, and not much more holds a long one.
_LEAST_BYTES, _FEW_BYTES = 16 * 2**20, 2**30
# A SuperLink of Flower refuses requests that are signed so many seconds off its clock.
_SIGNED_WITHIN = 300

P = ParamSpec("P")
State = Literal["ok", "note", "PROBLEM"]


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes
    ----------
    topic, text : str
        Name of what was looked at, and the result in a sentence.
    state : {"ok", "note", "PROBLEM"}
        With a problem the site refuses studies, all or some, or its limits do not hold.
        A limit that is used up is none: a study that it has joined may still go on. Nor
        is a date that is wrong: nothing is decided by one.
    """

    topic: str
    text: str
    state: State = "ok"


def check_site(
    node_config: Mapping[str, Any],
    study: Promise | None = None,
    file: Path | None = None,
) -> list[Finding]:
    """Return what a site with this node config has, and what is wrong with it.

    Parameters
    ----------
    node_config : mapping
        Node config of the SuperNode, as Flower hands it to the app.
    study : Promise, optional
        Promise of one more study: whether the site would take part in it is a finding,
        too.
    file : Path, optional
        File with the node config.
    """
    context = Context(0, 0, dict(node_config), RecordDict(), {})
    formats = (
        f"protocol {PROTOCOL_VERSION}, journals of schema {JOURNAL.schema}, ledgers of "
        f"schema {LEDGER.schema}"
    )
    python, flower = platform.python_version(), version("flwr")
    text = f"flwr_fbo {__version__} ({formats}), flwr {flower}, Python {python}"
    found = [Finding("versions", text), _clock()]
    if file is not None:  # who can write it could write other limits
        fault = why_untrusted(file)
        state: State = "PROBLEM" if fault else "ok"
        found.append(Finding("node config", fault or str(file), state))
    found += [_slot(context), _limits(context)]
    found += [_folder(context), *_ledger(context), _sums(context), _opendp(context)]
    of_app = [key for key in context.node_config if not is_our_entry(key)]
    if of_app:
        found.append(Finding("for the app", ", ".join(of_app)))
    unread = any(
        finding.topic == "limits" and finding.state == "PROBLEM" for finding in found
    )
    return found if study is None or unread else [*found, _study(context, study)]


def announced_study(
    epsilon: float, delta: float, num_releases: int = 1, protects: Protects = "client"
) -> Promise:
    """Return the promise of a study in which each site is in every release.

    Parameters
    ----------
    epsilon : float
        Epsilon of all its releases together, from 1e-3 to 1e3.
    delta : float
        From 1e-15 to below 1.
    num_releases : int
        From 1 to 10,000.
    protects : {"client", "example"}
        A client, as in tuning, or one example, as with a bandit.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    """
    require_int("num_releases", num_releases, 1)
    require_choice("protects", protects, Protects)
    z = math.sqrt(num_releases) / gaussian_mu(epsilon, delta)
    charge = Charge(z, num_releases=num_releases)
    unit = CLIENT if protects == "client" else EXAMPLE
    return Promise((charge,), private=True, delta=delta, unit=unit)


def _told(topic: str) -> Callable[[Callable[P, Finding]], Callable[P, Finding]]:
    """Have a check answer with the problem that it meets, in place of raising it."""

    def telling(look: Callable[P, Finding]) -> Callable[P, Finding]:
        @wraps(look)
        def told(*args: P.args, **kwargs: P.kwargs) -> Finding:
            try:
                return look(*args, **kwargs)
            except (NodeConfigError, JournalError, RefusedError) as error:
                return Finding(topic, str(error), "PROBLEM")

        return told

    return telling


def _clock() -> Finding:
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    return Finding(
        "clock",
        f"{now} UTC; a SuperLink refuses a site whose clock is {_SIGNED_WITHIN // 60} "
        "minutes off",
    )


@_told("agent-id")
def _slot(context: Context) -> Finding:
    slot = configured_slot(context)
    if slot >= 0:
        is_named = "agent-id" in context.node_config
        text = str(slot) if is_named else f"{slot}, the partition-id"
        return Finding("agent-id", text)
    return Finding(
        "agent-id",
        "none: a study with authenticated=True refuses this site, and the ledger "
        "counts it with all others of its folder",
        "PROBLEM",
    )


@_told("limits")
def _limits(context: Context) -> Finding:
    said = limits_text([node_limits(context)])
    if said:
        return Finding("limits", f"{said}; those of the app hold too")
    text = "none in the node config: only those of the app hold"
    return Finding("limits", text, "note")


@_told("fbo-folder")
def _folder(context: Context) -> Finding:
    folder = configured_folder(context)
    if folder is None:
        text = "none: trials and what was spent are forgotten when a run ends"
        if not _known_limits(context).bound_anything:
            return Finding("fbo-folder", text, "note")
        text += ", so that a limit on epsilon or releases holds for one run only"
        return Finding("fbo-folder", text, "PROBLEM")
    fault = why_untrusted(folder)
    if fault:
        return Finding("fbo-folder", fault, "PROBLEM")
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        text = f"{there} cannot be written by user {os.geteuid()}"
        return Finding("fbo-folder", text, "PROBLEM")
    free = shutil.disk_usage(there).free
    text = f"{folder}, {free / 2**30:.1f} GiB free"
    if there != folder:
        text += "; it will be created"
    if free < _LEAST_BYTES:
        return Finding("fbo-folder", f"{text}: too little", "PROBLEM")
    return Finding("fbo-folder", text, "note" if free < _FEW_BYTES else "ok")


def _known_limits(context: Context) -> Limits:
    """Return the limits of the node config; none where that is a problem, told once."""
    try:
        return node_limits(context)
    except NodeConfigError:
        return NO_LIMITS


def _ledger(context: Context) -> list[Finding]:
    """Return what was spent, and what is left of each limit."""
    try:
        folder = configured_folder(context)
        limits = node_limits(context)
    except NodeConfigError:
        return []  # told already
    if folder is None or why_untrusted(folder):
        return []
    path = folder / FILE_NAME

    @_told("ledger")
    def look() -> Finding:
        # All of them: those of other agents, and what SQLite has left beside them.
        for file in sorted(folder.glob("*.sqlite*")):
            fault = why_untrusted(file)
            if fault:
                return Finding("ledger", fault, "PROBLEM")
        if not has_journal(path):
            check_journals(folder, None)
            check_kept(folder, None)
            return Finding("ledger", f"{path}: none yet, nothing was spent")
        with SpendingLedger.held(folder) as ledger:
            check_journals(folder, ledger)
            check_kept(folder, ledger)
            charges.extend(ledger.facts())
            last = max((row.committed for row in ledger.rows), default=0.0)
        delta = DEFAULT_DELTA if limits.max_delta is None else limits.max_delta
        spent = totals_text(charges, delta)
        text = f"{path}: {counted(len(charges), 'charge')}, {spent}"
        state: State = "ok"
        if last > time.time() + _SIGNED_WITHIN:
            late = time.strftime("%Y-%m-%d %H:%M", time.gmtime(last))
            text += (
                f"; its newest date, {late} UTC, is still to come: is the clock right? "
                "Dates are for readers: all charges count, and nothing waits for one"
            )
            state = "note"
        return Finding("ledger", text, state)

    charges: list[Facts] = []
    found = [look()]
    if found[0].state == "PROBLEM":
        return found
    return [*found, *_left(charges, limits)]


def _left(charges: list[Facts], limits: Limits) -> list[Finding]:
    """Return what further studies may spend."""
    found = []
    most = limits.max_releases
    if most is not None:
        left = most - Spent.of(CLIENT, charges).num_releases
        text = f"{counted(max(0, left), 'release')} of {most}"
        found.append(_rest(text, is_spent=left <= 0))
    for unit, most_epsilon in limits.epsilons.items():
        assert limits.max_delta is not None
        spent = Spent.of(unit, charges)
        left_epsilon = spent.epsilon_left(most_epsilon, limits.max_delta)
        # Rounded down: a study of what is said must fit.
        digit = 10.0 ** (math.floor(math.log10(left_epsilon or 1.0)) - 2)
        told = math.floor(left_epsilon / digit) * digit
        allowed = Guarantee(unit).text(told, limits.max_delta, ".3g")
        text = f"a study of {allowed} at most, of {most_epsilon:g}"
        # Below a thousandth there is no study.
        found.append(_rest(text, is_spent=left_epsilon <= 1e-3 * most_epsilon))
    return found


def _rest(text: str, *, is_spent: bool) -> Finding:
    """Return what is left of a limit; a study that has spent it may still go on."""
    if is_spent:
        return Finding("left", f"{text}: no further study", "note")
    return Finding("left", text)


@_told("secure sums")
def _sums(context: Context) -> Finding:
    identity = SumIdentity.of(context.node_config)
    if identity.roster is None:
        text = "no roster: this site takes no part in sums with one"
        return Finding("secure sums", text)
    slot, configured = identity.slot, configured_slot(context)
    text = f"slot {slot} of {len(identity.roster.slots)} in the roster "
    text += identity.roster.digest()
    if configured not in (-1, slot):
        told = f"{text}, and agent-id is {configured}: the key is another site's"
        return Finding("secure sums", told, "PROBLEM")
    if _known_limits(context).min_colluding is None:
        told = f"{text}; fbo-min-colluding is not set, so the server chooses it"
        return Finding("secure sums", told, "note")
    return Finding("secure sums", text)


def _opendp(context: Context) -> Finding:
    try:
        return Finding("OpenDP", version("opendp"))
    except PackageNotFoundError:
        text = (
            "missing: a bandit and a secure sum need its noise, pip install "
            "'flwr-fbo[secure]'"
        )
        needed = "fbo-roster" in context.node_config
        return Finding("OpenDP", text, "PROBLEM" if needed else "note")


@_told("study")
def _study(context: Context, promise: Promise) -> Finding:
    """Return whether the site takes part in a study, by the rules of its app."""
    charges = Gate(context, configured_folder(context))
    charges.check(promise)
    charges.check_total(("announced", ""), promise)
    releases = counted(promise.num_releases, "release")
    assert promise.delta is not None
    spent = Spent((promise.charges,), total=promise.unit)
    epsilon = spent.text(promise.delta, Guarantee(promise.unit))
    text = f"{releases}, {epsilon}"
    if not node_limits(context).bound_anything:
        return Finding("study", f"{text}: no limit refuses it", "note")
    return Finding("study", f"{text}: within the limits, with all other studies")
