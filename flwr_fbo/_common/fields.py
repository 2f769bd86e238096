"""Rules on the fields of dataclasses: what is allowed, and which limit caps it.

Each rule stands on its field, as `dataclasses.field` metadata, and all are checked in
one place:

    @dataclass(frozen=True)
    class Settings:
        num_features: int = field(default=100, metadata=integer(1, cap="max_features"))
        noise_std: float = field(default=0.0, metadata=number(0))

        def __post_init__(self) -> None:
            check_fields(self)

A server writes the study that a site plays. So every integer of a study has a cap: one
of the sizes of `flwr_fbo.Limits`. It is ``max_points`` unless the field names another
one, or says that it costs neither time nor memory (``cap=FREE``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Any

from flwr_fbo._common.conversion import plain
from flwr_fbo._common.validation import (
    MOST,
    is_number,
    require,
    require_bool,
    require_choice,
    require_fraction,
    require_instance,
    require_int,
    require_known,
    require_number,
    require_seed,
)

FREE = ""
DEFAULT_CAP = "max_points"

Rule = Callable[[str, Any], object]
Metadata = Mapping[str, Any]


def check_fields(settings: Any) -> None:
    """Check a frozen dataclass's fields, in their order; make NumPy numbers plain.

    Raises
    ------
    ValueError
        If a value breaks its field's rule. The message names field and value, and says
        what is allowed.
    """
    for each in fields_by_name(settings.__class__).values():
        value = plain(getattr(settings, each.name))
        object.__setattr__(settings, each.name, value)
        rule: Rule | None = each.metadata.get("rule")
        if rule is not None:
            rule(each.name, value)


def ruled(
    rule: Rule, *, optional: bool = False, cap: str = FREE, part: Any = None
) -> Metadata:
    """Return a field's metadata.

    Parameters
    ----------
    rule : callable
        Called with the field's name and its value; raises ValueError.
    optional : bool
        Whether None is allowed as well.
    cap : str
        Limit of the integers in the field: a size of `flwr_fbo.Limits`, or ``FREE``.
    part : type or callable, optional
        Dataclass that the field holds, or a function that returns it for the
        dataclass's JSON values; that of each member, where the field has `several`.
    """

    def checked(name: str, value: Any) -> None:
        if value is not None:
            rule(name, value)

    return {"rule": checked if optional else rule, "cap": cap, "part": part}


def integer(
    least: int,
    most: int | None = None,
    *,
    optional: bool = False,
    cap: str = DEFAULT_CAP,
) -> Metadata:
    """Allow an integer from ``least`` to ``most``."""
    return ruled(
        lambda name, value: require_int(name, value, least, most),
        optional=optional,
        cap=cap,
    )


def number(
    least: float = -MOST,
    most: float = MOST,
    *,
    above: float | None = None,
    below: float | None = None,
    allowed: str = "",
    optional: bool = False,
) -> Metadata:
    """Allow a number within bounds, infinity if ``most`` is; see `require_number`."""
    bounds: dict[str, Any] = {"above": above, "below": below, "allowed": allowed}
    return ruled(
        lambda name, value: require_number(name, value, least, most, **bounds),
        optional=optional,
    )


def positive(*, optional: bool = False) -> Metadata:
    """Allow a finite number > 0."""
    return number(above=0, optional=optional)


def fraction(*, optional: bool = False) -> Metadata:
    """Allow a number between 0 and 1, both excluded."""
    return ruled(require_fraction, optional=optional)


def interval(*, optional: bool = False) -> Metadata:
    """Allow a pair of numbers up to 1e9, the smaller one first."""

    def check(name: str, value: Any) -> None:
        is_pair = isinstance(value, tuple) and len(value) == 2
        is_pair = is_pair and all(is_number(end) and abs(end) <= 1e9 for end in value)
        is_pair = is_pair and value[1] - value[0] >= 1e-9
        allowed = "a pair of numbers, the smaller one first"
        require(is_pair, name, value, allowed + optional * ", or None")

    return ruled(check, optional=optional)


def text(most: int) -> Metadata:
    """Allow 1 to ``most`` characters."""

    def check(name: str, value: Any) -> None:
        is_valid = isinstance(value, str) and 1 <= len(value) <= most
        require(is_valid, name, value, f"1 to {most} characters")

    return ruled(check)


def flag() -> Metadata:
    """Allow True and False."""
    return ruled(require_bool)


def choice(literal: Any, *, optional: bool = False) -> Metadata:
    """Allow the values of a ``Literal``."""
    return ruled(
        lambda name, value: require_choice(name, value, literal), optional=optional
    )


def seed() -> Metadata:
    """Allow None, and integers from 0 to 2**128 - 1."""
    return ruled(require_seed)


def instance(
    *kinds: type,
    allowed: str = "",
    optional: bool = False,
    cap: str = DEFAULT_CAP,
    part: Any = None,
) -> Metadata:
    """Allow instances of some classes; ``allowed`` says so in an error."""
    return ruled(
        lambda name, value: require_instance(name, value, *kinds, allowed=allowed),
        optional=optional,
        cap=cap,
        part=part,
    )


def several(
    rule_of_member: Metadata, *, least: int = 0, allowed: str = "a tuple"
) -> Metadata:
    """Allow a tuple whose members keep a rule, such as ``several(integer(1))``.

    Parameters
    ----------
    one : mapping
        Metadata of a member. Its cap and its part are those of the field.
    least : int
        Number of members at least.
    allowed : str
        Text for the error, where the value is not such a tuple.
    """

    def rule(name: str, values: Any) -> None:
        is_long = isinstance(values, tuple) and len(values) >= least
        require(is_long, name, values, allowed)
        for value in values:
            rule_of_member["rule"](name, value)

    return ruled(rule, cap=rule_of_member["cap"], part=rule_of_member["part"])


def holds(part: Any, *, cap: str = DEFAULT_CAP) -> Metadata:
    """Allow a dataclass that checks itself, or several, or None; see `ruled`."""

    def rule(name: str, value: Any) -> None:
        if value is None or not isinstance(part, type):
            return
        for member in value if isinstance(value, tuple | list) else [value]:
            require(isinstance(member, part), name, value, f"of class {part.__name__}")

    return ruled(rule, cap=cap, part=part)


@cache
def fields_by_name(kind: type) -> dict[str, Field[Any]]:
    """Return the fields of a dataclass."""
    return {each.name: each for each in fields(kind)}


def cap_of(each: Field[Any]) -> str:
    """Return the limit of the integers in a field: the default unless it has one."""
    return str(each.metadata.get("cap", DEFAULT_CAP))


def part_of(each: Field[Any]) -> Any:
    """Return the dataclass in a field, or a function that returns it, or None."""
    return each.metadata.get("part")


def to_json(value: Any) -> Any:
    """Return settings as JSON values: a dataclass as its fields, by name.

    A class with a method ``to_json`` decides for itself. A dataclass with a class
    variable ``kind``, which is one of several that a field may hold, has it beside its
    fields. Tuples become lists.
    """
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        values = {
            each.name: to_json(getattr(value, each.name)) for each in fields(value)
        }
        return {"kind": value.kind, **values} if hasattr(value, "kind") else values
    if isinstance(value, tuple | list):
        return [to_json(member) for member in value]
    return value


def from_json(part: Any, value: Any) -> Any:
    """Return the settings that `to_json` gave; lists become tuples.

    Parameters
    ----------
    part : type or callable, optional
        Class of ``value``, or of each member of a list: the ``part`` of a field, see
        `ruled`. What no field names as a part stays as it is. A class with a function
        ``from_json`` decides for itself.
    value : JSON value
        JSON value that `to_json` returned, or one from another party.

    Raises
    ------
    ValueError
        If a field is missing or unknown, or has a value that is not allowed.
    """
    if isinstance(value, list | tuple):
        return tuple(from_json(part, member) for member in value)
    if part is None or value is None:
        return value
    made = part if isinstance(part, type) else part(value)
    if hasattr(made, "from_json"):
        return made.from_json(value)
    if not isinstance(value, Mapping):
        return value  # for the rule of the field
    known, values = fields_by_name(made), {}
    for name, given in value.items():
        if name == "kind" and name not in known and hasattr(made, "kind"):
            continue  # it has led to the class
        require_known(f"field of {made.__name__}", name, known)
        values[name] = from_json(part_of(known[name]), given)
    # A default could differ from what the sender has, or from process to process.
    for name in known.keys() - values.keys():
        raise ValueError(f"{made.__name__} in JSON has no {name}.")
    return made(**values)
