"""Which node holds which of the study's N slots.

An agent is known by its slot, not by its node id, which changes when a SuperNode
restarts, unless it is authenticated. A client that knows its slot says so. Other
agents get a free slot, except agents with an unknown journal after round 1, which might
release trials twice. An agent whose site's ledger lacks releases that the server has
got is sent the receipt, and gets no slot. Who enrols is public; the content of later
messages cannot change a slot.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError

from flwr_fbo._common.text import agents_text, counted, printable
from flwr_fbo._common.validation import require
from flwr_fbo._compat import (
    ClientApi,
    instruction_content,
    key_fingerprints,
    message_type,
    reply_arrays,
    reply_metrics,
    to_array_record,
)
from flwr_fbo.privacy.spending_ledger import Promise
from flwr_fbo.site.receipts import Mark, ReceiptBook, read_mark
from flwr_fbo.strategies.host import Host
from flwr_fbo.study.codec import RECEIPT_ENTRY, Config

_log = logging.getLogger("flwr.fbo")

# A client that raises, raises again: it is asked at most this often in each round.
_MAX_FAILURES = 3
_SILENT = "client did not answer"
_MIN_TIMEOUT = 1.0
_LONGEST_REASON = 300
# What Flower's mods raise on a message that they are not for; clients do not.
_MOD = re.compile(r"_mod |DpMod |clipping_norm|KeyError|EOFError|zip\(\)")
# What Flower, or a client of ours, says of a message for clients of another API.
_API = re.compile(
    r"fitins|list index out of range|Invalid message type|No train function registered"
    "|not written for this app"
)


# What went wrong: at which node, None where a reply does not tell, and why.
_Trouble = tuple[int | None, str]
# Of equal reasons at most so many nodes are named in a line.
_MOST_NAMES = 20
# What a site that refuses says: asking again changes nothing.
_FINAL = re.compile(r"\b(RefusedError|NodeConfigError)\b")


_BEHIND = (
    "agent-id={slot} came with a ledger that lacks releases which this server has got: "
    "its folder was lost, is an older copy or a clone, or is another site's. "
    "`flwr-fbo ledger recover FOLDER` at the site counts them (it was sent the "
    "receipt); if it has another ledger, name that folder"
)
# Seconds to wait for a site that is told what it lacks.
_PATIENCE_OF_TOLD = 10.0


class _Claim(NamedTuple):
    """What a client says as it enrols.

    Attributes
    ----------
    slot : int
        -1 if it knows none.
    journal : int, optional
        The number of its journal, where that must be kept.
    mark : Mark, optional
        The newest charge of the study in its site's ledger, where it keeps one.
    """

    slot: int
    journal: int | None
    mark: Mark | None


class Enrolment:
    """Keeps the slots.

    Without Flower's node authentication a node is whom it says it is: one that claims
    the slot of an agent that is offline takes its place, and one that is first to claim
    a slot keeps its true agent out. With it a node id stands for a key, and a slot
    stays with the node that was first to have it. With ``keys`` a slot is given to its
    key alone.

    Parameters
    ----------
    num_agents : int
        Number N >= 1 of slots.
    host : Host
        How long to wait for enough agents, whether they prove who they are, and the
        kind of client that they are.

    Raises
    ------
    ValueError
        If the host's agents or keys do not fit so many slots.
    """

    def __init__(self, num_agents: int, host: Host) -> None:
        least, keys = host.min_agents, host.keys
        is_small = least is None or least <= num_agents
        require(is_small, "min_agents", least, f"at most num_agents={num_agents}")
        fits = keys is None or keys.keys() == set(range(num_agents))
        require(fits, "keys", keys, f"one for each slot, 0 to {num_agents - 1}")
        self.min_agents = num_agents if least is None else least
        self._num_agents, self._patience = num_agents, host.patience
        self._client_api: ClientApi = host.client_api
        self._authenticated = host.authenticated
        self._keys = host.keys
        self._said: set[_Trouble] = set()
        self._failures: dict[int, list[str]] = {}  # node id -> what its client raised
        self._refused: dict[int, str] = {}  # node id -> why it never gets a slot
        self._begun = False  # agents may have released something
        self.slots: dict[int, int] = {}  # node id -> slot
        self.journals: dict[int, int] = {}  # slot -> its agent's, where agents say so
        # What the sites' ledgers have of the study; `StudyStrategy` opens it.
        self.book = ReceiptBook(("", ""), Promise())
        self._told_of: set[int] = set()  # nodes that were sent what they lack

    def resume(self, slots: dict[int, int], journals: dict[int, int]) -> None:
        """Go on with the slots that an earlier run issued; where keys count, anew."""
        self.slots = slots if self._keys is None else {}
        self.journals = journals
        self._begun = bool(slots)

    def update(
        self,
        grid: Grid,
        question: Config,
        wanted: int,
        needed: int,
        timeout: float,
        plays: Callable[[int], bool] = lambda slot: True,
    ) -> dict[int, int]:
        """Enrol new nodes; return node id -> slot of those connected now, by slot.

        They are asked the ``question``, `Study.enrolment`. Waits for ``wanted`` agents,
        of whom one ``plays``, a function of the slot; and goes on with fewer once its
        patience is over.

        Raises
        ------
        AggregationError
            If fewer than ``needed`` agents are enrolled then, or none of them plays.
            While fewer nodes than that are connected, none is asked anything.
        """
        deadline = time.monotonic() + self._patience
        logged = None
        self._forget_failures()
        while True:
            nodes = sorted(grid.get_node_ids())
            trouble: list[_Trouble] = []
            if len(nodes) >= needed:
                new = [
                    n for n in nodes if n not in self.slots and not self._hopeless(n)
                ]
                left = max(_MIN_TIMEOUT, deadline - time.monotonic())
                trouble = self._enrol(grid, question, new, min(timeout, left))
            present = {node: self.slots[node] for node in nodes if node in self.slots}
            in_order = dict(sorted(present.items(), key=lambda item: item[1]))
            some_play = any(map(plays, present.values()))
            if len(present) >= wanted and some_play:
                break
            hopeless = [node for node in nodes if self._hopeless(node)]
            heard = len(present) + len(hopeless)
            # A grid in this process has all its nodes from the beginning.
            complete = getattr(grid, "is_complete", False)
            nobody_else = heard >= self._num_agents or (
                complete and (len(nodes) < needed or heard == len(nodes))
            )
            over = time.monotonic() >= deadline or nobody_else
            if over and len(present) >= needed and some_play:
                _log.warning(
                    "Continuing with %d of %d agents.", len(present), self._num_agents
                )
                break
            if over:
                trouble += [(node, self._last_reason(node)) for node in hopeless]
                few = "this grid has too few nodes" if complete else "too few nodes"
                few += self._missing(grid, nodes)
                if len(present) >= needed:
                    few = "all of them wait for the release of a cohort that is absent"
                reasons = "; ".join(self._told(grid, trouble)) or few
                raise AggregationError(
                    f"{counted(needed, 'agent')} must enrol, but with patience="
                    f"{self._patience:g} s, {counted(len(nodes), 'node')} came and "
                    f"{len(present)} enrolled: {reasons}."
                )
            if logged != (len(nodes), len(present)):
                logged = len(nodes), len(present)
                _log.info(
                    "Waiting for agents: %s connected, %d enrolled, %d wanted%s.",
                    counted(len(nodes), "node"),
                    len(present),
                    wanted,
                    self._missing(grid, nodes),
                )
            time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))
        self._begun = True
        return in_order

    def _missing(self, grid: Grid, nodes: list[int]) -> str:
        """Return which slots are not connected, as far as that is known."""
        if self._keys is not None:
            there = set(key_fingerprints(grid, nodes).values())
            missing = [s for s, key in self._keys.items() if key not in there]
        else:
            known = {self.slots[node] for node in nodes if node in self.slots}
            missing = sorted(set(range(self._num_agents)) - known) if known else []
        return f"; missing: {agents_text(sorted(missing))}" if missing else ""

    def _hopeless(self, node: int) -> bool:
        """Return whether a node is refused, or failed too often to be asked again."""
        failures = self._failures.get(node, [])
        return node in self._refused or len(failures) >= _MAX_FAILURES

    def _last_reason(self, node: int) -> str:
        return self._refused.get(node) or self._failures[node][-1]

    def _forget_failures(self) -> None:
        """Ask those again that raised; to wait for the silent ones is too dear."""
        self._failures = {
            node: [reason for reason in reasons if reason == _SILENT]
            for node, reasons in self._failures.items()
        }

    def _enrol(
        self, grid: Grid, question: Config, nodes: list[int], timeout: float
    ) -> list[_Trouble]:
        """Ask new nodes for their slots, bind them; return what went wrong."""
        if not nodes:
            return []
        config = ConfigRecord({**question})
        # An array that no client reads or answers: a mod of Flower that would change
        # an agent's message finds no update of it, and refuses before the study begins.
        probe = to_array_record([np.zeros(1)])
        content = instruction_content(probe, config, self._client_api)
        kind = message_type(self._client_api)
        messages = [Message(content, node, kind) for node in nodes]
        pairs = matched(messages, grid.send_and_receive(messages, timeout=timeout))
        claims, trouble, failures = _read_claims(nodes, pairs, self._client_api)
        for node, failure in failures.items():
            often = _MAX_FAILURES if _FINAL.search(failure) else 1
            self._failures.setdefault(node, []).extend([failure] * often)
        claims = self._proven(grid, claims, trouble)
        trouble += self._bind(claims, set(grid.get_node_ids()))
        self._send_receipts(grid, question, claims)
        for line in self._told(grid, set(trouble) - self._said):
            _log.warning("Not enrolled: %s", line)
        self._said |= set(trouble)
        return trouble

    def _told(self, grid: Grid, trouble: Iterable[_Trouble]) -> list[str]:
        """Return a line for each reason, which begins with the nodes that it is for."""
        nodes: dict[str, set[int]] = {}
        for node, reason in trouble:
            nodes.setdefault(reason, set()).update(() if node is None else (node,))
        named = set().union(*nodes.values())
        proven = self._authenticated or self._keys is not None
        keys = key_fingerprints(grid, named) if proven and named else {}
        slot_of_key = {key: slot for slot, key in (self._keys or {}).items()}
        names = {}
        for node in named:
            key = keys.get(node)
            slot = slot_of_key.get(key or "", self.slots.get(node))
            names[node] = _name_of(node, slot, key)
        return _lines_of(nodes, names)

    def _proven(
        self, grid: Grid, claims: dict[int, _Claim], trouble: list[_Trouble]
    ) -> dict[int, _Claim]:
        """Return the claims of those that have the key of the slot; refuse others."""
        if self._keys is None:
            return claims
        proven, found = {}, key_fingerprints(grid, claims)
        for node, claim in claims.items():
            slot = claim.slot
            if slot in self._keys and self._keys[slot] != found.get(node):
                key = found.get(node, "no key")
                self._refused[node] = (
                    f"agent-id={slot} came with {key}, not with its key in Host(keys=)"
                )
                trouble.append((node, self._refused[node]))
            else:
                proven[node] = claim
        return proven

    def _bind(
        self, claims: Mapping[int, _Claim], connected: set[int]
    ) -> list[_Trouble]:
        """Give every node its slot, known ones first; return who got none."""
        trouble: list[_Trouble] = []
        # Both ways round, kept up as slots are given: N claims are N steps.
        holders = {slot: holder for holder, slot in self.slots.items()}
        owners = {journal: slot for slot, journal in self.journals.items()}
        free = 0  # no slot below it is
        for node in sorted(claims, key=lambda n: (claims[n].slot < 0, n)):
            claimed, journal, mark = claims[node]
            owner = -1 if mark is None else self.book.site_of(mark)
            owner = owner if journal is None else owners.get(journal, owner)
            # It may not have heard of what it was issued: a client is told with its
            # first instruction.
            wanted = claimed if claimed >= 0 else owner
            while free in holders:
                free += 1
            refusal = self._refusal(wanted, journal, holders, free)
            if refusal:
                self._refused[node] = refusal
                trouble.append((node, refusal))
                continue
            slot = wanted if wanted >= 0 else free
            holder = holders.get(slot)
            reason = self._conflict(slot, journal, owner, holder in connected)
            if self.book.is_behind(slot, mark):
                reason = _BEHIND.format(slot=slot)
            if reason:
                trouble.append((node, reason))
                continue
            if holder is not None:
                del self.slots[holder]  # came back under another node id
            self.slots[node], holders[slot] = slot, node
            if journal is not None:
                self.journals[slot], owners[journal] = journal, slot
            self.book.note(slot, mark)
        return trouble

    def _send_receipts(
        self, grid: Grid, question: Config, claims: Mapping[int, _Claim]
    ) -> None:
        """Send receipts to nodes that lack what is in them, once: for their logs."""
        messages = []
        for node, claim in claims.items():
            receipt = self.book.receipt(claim.slot)
            is_behind = receipt and self.book.is_behind(claim.slot, claim.mark)
            if not is_behind or node in self.slots or node in self._told_of:
                continue
            self._told_of.add(node)
            config = ConfigRecord({**question, RECEIPT_ENTRY: receipt})
            probe = to_array_record([np.zeros(1)])
            content = instruction_content(probe, config, self._client_api)
            messages.append(Message(content, node, message_type(self._client_api)))
        if messages:  # what they answer is an error
            list(grid.send_and_receive(messages, timeout=_PATIENCE_OF_TOLD))

    def _conflict(
        self, slot: int, journal: int | None, owner: int, is_held: bool
    ) -> str:
        """Return why a slot cannot be given now, or nothing."""
        if self.journals.get(slot, journal) != journal:
            why = (
                f"agent-id={slot} came without its journal, which has its releases: "
                "restore the journal, or begin another study"
            )
            if self._keys is not None:
                return why
            return (
                f"{why}. Or another node took the slot first; Host(keys=) prevents this"
            )
        if owner not in (-1, slot) or (is_held and owner == slot):
            return (
                f"agent-id={slot} came with the journal or the ledger of agent {owner} "
                "on another node: every agent needs a folder of its own"
            )
        return f"agent-id={slot} is held by another node" if is_held else ""

    def _refusal(
        self, claim: int, journal: int | None, holders: Mapping[int, int], free: int
    ) -> str:
        """Return why a claim will never be met, or nothing; ``free`` is a slot."""
        if claim >= self._num_agents:
            return (
                f"agent-id={claim} (else partition-id) is not allowed: 0 to "
                f"{self._num_agents - 1} (num_agents={self._num_agents})"
            )
        if claim < 0 and self._authenticated:
            return "no agent-id in the node config, which authenticated=True needs"
        if claim < 0 and journal is not None and self._begun:
            return (
                "no agent-id in the node config, and an unknown journal: "
                "after the first round an agent needs an agent-id, as it may have "
                "lost its journal"
            )
        if claim < 0 and free >= self._num_agents:
            return f"all {self._num_agents} slots are taken"
        if claim in holders and self._authenticated and self._keys is None:
            return (
                f"agent-id={claim} belongs to another node id: another key, or a "
                "SuperLink that has lost its database (authenticated=True)"
            )
        return ""


def _name_of(node: int, slot: int | None, key: str | None) -> str:
    """Return how a line names a node: with its slot and its key, where it has them."""
    facts = [] if slot is None else [f"slot {slot}"]
    facts += [] if key is None else [f"key {key}"]
    return f"node {node} ({', '.join(facts)})" if facts else f"node {node}"


def _lines_of(
    nodes: Mapping[str, Iterable[int]], names: Mapping[int, str]
) -> list[str]:
    """Return a line for each reason: the names of its nodes, and the reason."""
    lines = []
    for reason, of_reason in sorted(nodes.items()):
        all_names = [names[node] for node in sorted(of_reason)]
        listed, num_more = all_names[:_MOST_NAMES], len(all_names) - _MOST_NAMES
        listed += [f"{num_more} more nodes"] if num_more > 0 else []
        lines.append(f"{', '.join(listed)}: {reason}" if listed else reason)
    return lines


def _read_claims(
    asked: Iterable[int],
    replies: Iterable[tuple[int | None, Message]],
    client_api: ClientApi,
) -> tuple[dict[int, _Claim], list[_Trouble], dict[int, str]]:
    """Return node -> its claim, what went wrong, node -> its error."""
    claims: dict[int, _Claim] = {}
    failures: dict[int, str] = {}
    answered: set[int] = set()
    trouble: list[_Trouble] = []
    for node, reply in replies:
        if node is None:
            if reply.has_error():  # LocalDpMod answers the client in place of us
                trouble.append((None, _failure(reply, client_api)))
            continue
        answered.add(node)
        if reply.has_error():
            failures[node] = _failure(reply, client_api)
            continue
        metrics = reply_metrics(reply.content)
        slot: Any = metrics.get("agent-id")
        journal: Any = metrics.get("journal")
        if isinstance(slot, int) and not isinstance(slot, bool):
            number = journal if isinstance(journal, int) else None
            claims[node] = _Claim(slot, number, read_mark(metrics))
        else:
            why = "client is not a flwr_fbo client (it sent no agent-id)"
            trouble.append((node, why))
    for node in set(asked) - answered:
        failures[node] = _SILENT
    return claims, [*trouble, *failures.items()], failures


def matched(
    messages: Sequence[Message], replies: Iterable[Message]
) -> list[tuple[int | None, Message]]:
    """Return each reply to messages that were sent, with the node that was asked.

    None for a reply that was not asked for, or that repeats another.
    """
    # Messages have ids once they are sent. An error's source node id may be wrong; what
    # it replies to is not.
    waiting = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
    return [(waiting.pop(r.metadata.reply_to_message_id, None), r) for r in replies]


def _failure(reply: Message, client_api: ClientApi) -> str:
    """Return what a client raised, and whether a mod may have."""
    line = first_line(reply.error.reason).removesuffix(".")
    hint = " (by a mod of its ClientApp? See docs/app/mods.md)"
    api = (
        f" (client_api={client_api!r} may not be what it answers: 'message' is for "
        "tuning_app and its like, 'numpy' for a NumPyClient, 'both' for either, "
        "'action' for add_tuning)"
    )
    hints = (api if _API.search(line) else "") + (hint if _MOD.search(line) else "")
    return f"client failed: {line}{hints}"


def first_line(reason: str | None) -> str:
    """Return what an error's traceback says in one line, fit for a log."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    line = lines[-1] if lines else "no reason given"
    return printable(line[:_LONGEST_REASON])


def one_array(
    slot: int, reply: Message, wanted: bool = True
) -> np.ndarray[Any, Any] | None:
    """Return the one array of a reply, or None if there is not exactly one.

    One that is good for nothing is named in the log; no honest client sends it.
    """
    try:
        arrays = reply_arrays(reply.content)
        reason = "" if all(np.isfinite(a).all() for a in arrays) else "NaN or infinite"
        if wanted and len(arrays) != 1:
            reason = f"{len(arrays)} arrays in place of one"
    except Exception as error:  # bytes of a stranger can fail in any way
        arrays = []
        reason = type(error).__name__  # its text may quote them
    if reason:
        _log.warning("\t> agent %d: its message counts as zero: %s", slot, reason)
    return arrays[0] if len(arrays) == 1 else None
