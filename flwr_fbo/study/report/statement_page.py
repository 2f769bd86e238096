"""A privacy statement as an HTML page, and as text: both of the same JSON values."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from flwr_fbo._common.text import counted, printable
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.conditions import after_epsilon
from flwr_fbo.privacy.guarantee import Guarantee, PrivacyUnit
from flwr_fbo.study.report.page import Section, Table, render
from flwr_fbo.study.report.statement import NOT_ON_RECORD

_FOR = {
    "a plan": "Before the study: from its plan. Nothing has left a site yet.",
    "a study's server": "From the record of the study's server.",
    "a site": "From the ledger and the journals of one site.",
}
_NONE = "-"
_FILL_IN = "to be filled in"

Values = Mapping[str, Any]


def html_of(values: Values) -> str:
    """Return a statement as a page."""
    return render("Privacy statement", _lead(values), sections_of(values))


def text_of(values: Values, columns: int) -> str:
    """Return a statement as text in lines of so many columns."""
    lines = ["Privacy statement", "=" * 17, *_wrapped(_lead(values), columns)]
    for section in sections_of(values):
        if section.parts:
            lines += ["", section.heading, "-" * len(section.heading)]
        for part in section.parts:
            if isinstance(part, Table):
                lines += _wrapped(part.caption, columns)
                for first, *rest in part.rows:
                    cells = "; ".join(str(cell) for cell in rest if cell != _NONE)
                    lines += _wrapped(f"{first}: {cells}" if cells else first, columns)
            else:
                lines += _wrapped(str(part), columns)
    return printable("\n".join(lines))


def _wrapped(text: str, columns: int) -> list[str]:
    return textwrap.wrap(
        text,
        columns,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _lead(values: Values) -> str:
    return f"{_FOR[values['of']]} Folder: {values['folder']}."


def sections_of(values: Values) -> list[Section]:
    """Return the parts of a statement, in their order."""
    found: list[Section] = []
    many = len(values["studies"]) > 1
    for number, study in enumerate(values["studies"], 1):
        of = f", study {number}" if many else ""
        found += [
            Section(f"Claim{of}", [_claim(study)]),
            Section(f"For one patient{of}", _patient(study)),
            Section(f"In plain words{of}", _plain(study)),
            Section(f"Against whom{of}", _against(study)),
            Section(f"What left each site{of}", _left(study)),
            Section(f"What is not covered{of}", [_list(study["not_covered"])]),
        ]
    return [
        *found,
        Section("Totals", _totals(values)),
        Section("Conditions", [_pairs(values["conditions"], "condition")]),
        Section("Evidence", _evidence(values)),
        Section("To be filled in", [_blanks(values["to_fill_in"])]),
    ]


def _pairs(values: Values, what: str, caption: str = "") -> Table:
    return Table((what, "value"), list(values.items()), caption, numeric=False)


def _list(values: Sequence[str]) -> Table:
    rows = [(number, text) for number, text in enumerate(values, 1)]
    return Table(("", "what"), rows, "", numeric=False)


def _blanks(values: Values) -> Table:
    filled = {name: text or f"({_FILL_IN})" for name, text in values.items()}
    return _pairs(filled, "field", "No record has these.")


def told(about: Values) -> str:
    """Return an epsilon of a statement with its terms."""
    unit = PrivacyUnit(about["unit"], about["adjacency"])
    guarantee = Guarantee(unit, about["trust"], tuple(about["conditions"]))
    epsilon, other = about["epsilon"], about["epsilon_if_replaced"]
    if epsilon is None:  # JSON has no infinity
        epsilon = math.inf
    spent = PrivacySpent(
        epsilon,
        about["delta"],
        0,
        "",
        guarantee=guarantee,
        epsilon_if_replaced=other,
    )
    return spent.text()


def _claim(study: Values) -> Table:
    claim = study["claim"]
    rows: dict[str, Any] = {"strategy": study["strategy"]}
    if "study_id" in study:
        rows["study"] = study["study_id"]
    agents, senders = study.get("agents"), study.get("senders")
    if agents is not None:
        sending = "" if senders is None else f", of which {senders} send"
        rows["sites"] = f"{agents}{sending}"
    if study.get("rounds"):
        rounds = study["rounds"]
        rows["rounds"] = (
            f"{rounds['done']} done; {rounds['fewest']} to {rounds['most']} sites "
            "answered in each"
        )
    if "first" in study:
        rows["released"] = f"from {study['first']} to {study['last']}"
    if not study["private"]:
        rows["claim"] = (
            "NOT PRIVATE: something has left without noise, or its seed is known"
        )
    elif "unit" not in claim:
        rows["claim"] = "nothing was released, or there is no guarantee"
    else:
        rows["claim"] = told(claim)
        rows["releases of a site"] = claim["releases"]
        rows["mu"] = _mu(claim)
        unit = PrivacyUnit(claim["unit"], claim["adjacency"])
        rows["unit and adjacency"] = f"{_WHOM[claim['unit']]}: {unit.words}"
    if study.get("unprotected_replies"):
        number = counted(study["unprotected_replies"], "reply")
        rows["without noise"] = (
            f"{number.replace('replys', 'replies')}, such as metrics"
        )
    return _pairs(rows, "field")


def _mu(claim: Values) -> str:
    if claim["mu"] is not None:
        return f"{claim['mu']:.4g}"
    if claim["best_guess"] is None:
        return NOT_ON_RECORD
    return "none: with sampling it is no Gaussian mechanism"


_WHOM = {
    "client": "all that one site sends under the noise in this study",
    "example": "one record or trial of one site, such as a visit",
}


def _patient(study: Values) -> list[Any]:
    rows, conditions = [], after_epsilon(*study["claim"].get("conditions", ()))
    for case in study["patient"]:
        of = (
            "all records"
            if case["records"] is None
            else counted(case["records"], "record")
        )
        at = counted(case["hospitals"], "hospital")
        guess = case["best_guess"]
        meaning = "the best guess is not computed, with sampling"
        if guess is not None:
            meaning = f"the best guess is right {hundred(guess)} times in a hundred"
        rows.append(
            (
                f"{of} at {'each of ' if case['hospitals'] > 1 else ''}{at}",
                f"{'at most ' if case['at_most'] else ''}epsilon "
                f"{_number(case['epsilon'])} per patient (replaced by another, "
                f"delta {case['delta']:g}){conditions}",
                meaning,
            )
        )
    if not rows:
        return ["Nothing follows: there is no guarantee, or none of this kind."]
    caption = "What the noise hides of one patient whose records had been others."
    return [Table(("patient", "epsilon", "meaning"), rows, caption, numeric=False)]


def _number(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.4g}"


def hundred(share: float) -> str:
    """Return how often in a hundred; never 100 of less."""
    text = f"{100 * share:.1f}"
    return "more than 99.9" if text == "100.0" and share < 1 else text


def _plain(study: Values) -> list[Any]:
    claim = study["claim"]
    if not study["private"] or claim.get("best_guess") is None:
        return ["There is nothing to say: see the claim."]
    guess = hundred(claim["best_guess"])
    at_most = "" if claim["mu"] else "at most "
    lines: list[Any] = [
        "An observer knows all else, and first thinks both worlds of the claim equally "
        f"likely. The best guess is right {at_most}{guess} times in a hundred; "
        "without the data it would be 50."
    ]
    if claim["share_more_sure"] is not None:
        lines.append(
            f"In {100 * claim['share_more_sure']:.2g} % of such studies the observer "
            f"ends more than {100 * claim['sure']:.4g} % sure of the true one, if the "
            "two are as far apart as they can be."
        )
    if claim["profile"]:
        terms = PrivacyUnit(claim["unit"], claim["adjacency"]).words
        profile = ", ".join(
            f"{_number(epsilon)} at delta {delta}"
            for delta, epsilon in claim["profile"].items()
        )
        lines.append(f"The same noise at other deltas, {terms}: {profile}.")
    return lines


def _against(study: Values) -> list[Any]:
    if "unit" not in study["claim"]:
        return ["Nothing is claimed."]
    lines: list[Any] = [f"The claim holds {study['against']}."]
    if study["trust_on_record"] is False:
        lines = ["Whether the server adds the noise, or the sites do: not on record."]
    for group in study.get("groups", ()):
        lines.append(
            f"{group['sites']} sites sum their messages; the noise of "
            f"{group['honest']} honest ones is enough, {group['colluding']} may "
            f"collude with the server, and {group['threshold']} must agree on a sum."
        )
        if not group["colluding"]:
            lines.append(
                "With 0 that may collude, it does not hold against another site, which "
                "can subtract its own noise."
            )
    if study.get("groups"):
        lines.append(f"Digest of the roster: {study['roster']}.")
    if study.get("noise"):
        lines.append(f"The noise is {study['noise']}.")
    if "server_key" in study:
        lines.append(f"Key of the server, which signs receipts: {study['server_key']}.")
    return lines


def _left(study: Values) -> list[Any]:
    rows = [
        (
            one["what"],
            "number not on record"
            if one["times"] is None
            else counted(one["times"], "message"),
            "size not on record"
            if one["bytes"] is None
            else f"{one['bytes']} bytes each",
        )
        for one in study["sent"]
    ]
    parts: list[Any] = []
    if rows:
        caption = "Payload, without what Flower and secure sums add to a message."
        headings = ("under the noise", "number", "size")
        parts.append(Table(headings, rows, caption, numeric=False))
    else:
        parts.append("Messages under the noise: not on record.")
    if study["exact"]:
        exact = [("exact, without noise", text) for text in study["exact"]]
        parts.append(Table(("", "what"), exact, "", numeric=False))
    return parts


def _totals(values: Values) -> list[Any]:
    if not values["totals"]:
        return [f"{_capital(NOT_ON_RECORD)}."]
    rows = [(_capital(one["of"]), told(one)) for one in values["totals"]]
    for more in values["forecast"]:
        rows += [
            (f"With {more['more']} more like the last, {one['of']}", told(one))
            for one in more["totals"]
        ]
    caption = (
        "By the privacy filter: it holds if each study is chosen after the last one "
        "was read. Each total is for one unit; what protects another one is converted."
    )
    return [Table(("total", "epsilon"), rows, caption, numeric=False)]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _evidence(values: Values) -> list[Any]:
    parts: list[Any] = []
    audit = values["audit"]
    if isinstance(audit, str):
        parts.append(f"Audit: {audit}.")
    else:
        parts += map(_audited, audit)
    rows = [
        (
            one["file"],
            f"{one['kind']}, {counted(one['releases'], 'release')}, mode {one['mode']}",
            f"SHA-256 {one['sha256']}",
        )
        for one in values["records"]
    ]
    if rows:
        caption = "The records that this page is of; the digest is of their content."
        headings = ("file", "what", "digest")
        parts.append(Table(headings, rows, caption, numeric=False))
    return parts


def _audited(found: Values) -> str:
    """Return what an audit found, in a sentence."""
    promised = {**found, "epsilon": found["epsilon_promised"]}
    fault = found["planted_fault"]
    planted = f", with a planted fault ({fault})" if fault else ""
    seeded = "" if found["private_entropy"] else ", with seeded noise"
    return (
        f"Audit of a small study of {found['study']}{planted}{seeded}: epsilon is at "
        f"least {found['epsilon_lower']:.4g}, promised is "
        f"{told({**promised, 'epsilon_if_replaced': None})}: {found['verdict']}."
    )
