"""Mistakes in a stack file. All are reported at once, each with its path, what is allowed and what to do."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import re
import types
import typing
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from infra.config import foreign_keys
from infra.config.fields import CLUSTER_NAME_LENGTH, IN_WORDS, NAME, Overrides
from infra.errors import EXIT_USAGE, UserError
from node.system import plurals

Location = tuple[str | int, ...]
"""Keys and list indexes from the top of the configuration, e.g. ("slurm-stacks:cluster", "partitions", 1)."""

LONGEST_VALUE = 80
MOST_IN_FULL = 20
"""Up to this number each mistake has a paragraph; if there are more, each has one line."""

OTHER_WORDS = {"machine": "instance_type", "machine_type": "instance_type"}
"""What users write for a key, such as a cloud's word -> the key. What only other tools call so is in
`infra.config.foreign_keys`."""
NO_SECRET = "a value that is no secret: the cluster's users and whoever sees the stack can read it"
POOLS = "partitions[].pools[]"
MOST_PLACES = 4
"""A key that is known at more places than these is not pointed to."""

_UNITS = {"gib": "GiB", "mib": "MiB", "hour": "USD an hour", "usd": "USD", "timeout": "seconds"}
_UNITS |= {"time": "seconds", "delay": "seconds", "interval": "seconds"}
_UNITS |= {"spread": "seconds", "latency": "seconds", "lag": "seconds"}


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a stack file.

    Attributes:
        code: The name of the rule, such as `fsx.size`, which stays when the sentence changes. The page
            docs/reference/mistakes.md lists all.
        path: The location as text, e.g. `slurm-stacks:cluster.partitions[1].nodes.max`.
        given: The value in the file; empty if there is none.
        allowed: What the rule allows there.
        advice: What to do; empty if `allowed` says it.
        unfilled: Whether it is a placeholder, which a plan accepts where nothing else is wrong.
    """

    code: str
    path: str
    given: str
    allowed: str
    advice: str = ""
    unfilled: bool = False

    def __str__(self) -> str:
        rows = [("given", self.given), ("allowed", self.allowed), ("do", self.advice)]
        return "\n".join(
            [f"{self.path} [{self.code}]", *(f"    {label:<8} {text}" for label, text in rows if text)]
        )

    def line(self, earlier: set[str]) -> str:
        """Return the mistake on one line.

        Args:
            earlier: Long texts of earlier lines, which are not repeated. Those of this line are added.
        """
        allowed, advice = ("as above" if text in earlier else text for text in (self.allowed, self.advice))
        earlier.update(text for text in (self.allowed, self.advice) if len(text) > LONGEST_VALUE)
        return (
            f"{self.path}: {self.given}; allowed: {allowed}"
            + f"; {advice}" * bool(advice)
            + f" [{self.code}]"
        )


class ConfigError(UserError):
    """The stack file cannot be used.

    Attributes:
        mistakes: All mistakes; empty if the file could not be read at all. Values that are still to be filled
            in come last.
    """

    def __init__(self, subject: str, mistakes: Sequence[Mistake] = (), *, code: str = "") -> None:
        self.mistakes = tuple(mistakes)
        if not mistakes:
            super().__init__(subject, EXIT_USAGE, code=code)
            return
        unfilled = sum(mistake.unfilled for mistake in mistakes)
        count = plurals.count(len(mistakes) - unfilled, "mistake")
        if unfilled:
            count += f", and {plurals.count(unfilled, 'value')} still to be filled in"
        head = f"{subject}: {count}."
        if len(mistakes) <= MOST_IN_FULL:
            super().__init__("\n\n".join([head, *map(str, mistakes)]), EXIT_USAGE, code=code)
        else:
            earlier: set[str] = set()
            # The head is repeated at the end, because the beginning has scrolled off the screen.
            lines = [head, "", *(mistake.line(earlier) for mistake in mistakes), "", head]
            super().__init__("\n".join(lines), EXIT_USAGE, code=code)

    def as_json(self) -> dict[str, Any]:
        """Return the error for a program that reads it, each mistake with its code and path."""
        return super().as_json() | {"mistakes": [dataclasses.asdict(mistake) for mistake in self.mistakes]}


def path_of(location: Location) -> str:
    """Return a location as text."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"[\w:-]+", part):
            text += f".{_shortened(part)}" if text else _shortened(part)
        else:
            text += f"[{_shortened(_json(part))}]"
    return text


def shown(value: Any) -> str:
    """Return a value as text, shortened. A value that looks like a secret is not shown."""
    if value is None:
        return "nothing (null)"
    text = _json(value)
    if "PRIVATE KEY" in text or '"secure"' in text:
        return "(not shown: looks like a secret)"
    return _shortened(text)


def _json(value: Any) -> str:
    """Return the beginning of a value as JSON, without control characters."""
    text = ""
    try:
        # The encoding stops early, because the value may be huge.
        for piece in json.JSONEncoder(ensure_ascii=False, default=str).iterencode(value):
            text += piece[:1000]
            if len(text) > 1000:
                break
    except (ValueError, RecursionError):
        text = type(value).__name__
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def near(word: str, words: Iterable[str]) -> str | None:
    """Return the word that was probably meant; `None` if no word is similar enough."""
    candidates = list(words)
    by_lower = {w.lower(): w for w in candidates}
    similar = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.7)
    if similar:
        return by_lower[similar[0]]
    # disk_gb is meant as disk_gib, and ssh as ssh_cidrs, if only one key begins like this.
    begins = [w for w in candidates if len(word) > 2 and w.startswith(word.rstrip("s"))]
    return begins[0] if len(begins) == 1 else None


def unknown_key(
    location: Location, allowed: Sequence[str], value: Any = None, *, model: type[BaseModel] | None = None
) -> list[Mistake]:
    """Return an unknown key as a mistake, with the key that was probably meant.

    Only the value of a word of another tool is shown, and only if it is a number or a name. If such a word is
    a section, each key in it that has an answer is a mistake of its own.

    Args:
        model: The model of the whole section, in which the key may have its place elsewhere.
    """
    key = str(location[-1])
    word = foreign_keys.find(location, exact=key.lower() in map(str.lower, allowed))
    known = f"the keys {', '.join(allowed)}" if allowed else "no keys"
    if word is not None:
        return [
            _of_another_tool(at, answer, given_value, known if at == location else "keys of a stack file")
            for at, given_value, answer in (
                (location, value, word),
                *foreign_keys.inner(location, value, word),
            )
        ]
    others = {other: meant for other, meant in OTHER_WORDS.items() if meant in allowed}
    meant = near(key, [*allowed, *others])
    advice = [f"did you mean {others.get(meant, meant)}?"] if meant else []
    places = [] if model is None else _places(model).get(key, [])
    if places and len(places) <= MOST_PLACES:
        advice.append(f"its place is {' or '.join(places)}")
    return [Mistake("key.unknown", path_of(location), _UNKNOWN_KEY, known, " ".join(advice) or _NOWHERE)]


def _of_another_tool(at: Location, word: foreign_keys.Word, value: Any, allowed: str) -> Mistake:
    advice = foreign_keys.advice(at, word, value)
    if word is foreign_keys.UNKNOWN:
        return Mistake("key.not-carried", path_of(at), _UNKNOWN_KEY, allowed, advice)
    return Mistake("key.of-another-tool", path_of(at), _UNKNOWN_KEY, allowed, advice)


_UNKNOWN_KEY = "a key that is not known"
_NOWHERE = (
    "no key is called so: infra/schema/stack.json describes all, look there for what it does, or leave it out"
)


@functools.cache
def _places(model: type[BaseModel]) -> dict[str, list[str]]:
    """Return the paths at which a section and the sections in it have each key."""
    paths: dict[str, list[str]] = {}

    def look(kind: Any, path: str) -> None:
        kind = plain_type(kind)
        if typing.get_origin(kind) in (list, dict):
            look(typing.get_args(kind)[-1], f"{path}[]" if typing.get_origin(kind) is list else f"{path}.…")
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            for key, field in kind.model_fields.items():
                below = f"{path}.{key}" if path else key
                if path != POOLS and not path.startswith(f"{POOLS}."):  # their keys are the partition's
                    paths.setdefault(key, []).append(below)
                look(field.annotation, below)

    look(model, "")
    return paths


def from_pydantic(error: ErrorDetails, top: Location, model: type[BaseModel]) -> list[Mistake]:
    """Return a `Mistake` from an error of pydantic; several for a section of another tool.

    Args:
        top: The location of `model` in the configuration.
        model: The model that was validated. The error's location starts there.
    """
    inner = tuple(error["loc"])
    if error["type"] == "extra_forbidden":
        section = _walk(model, inner[:-1])
        if isinstance(section, type) and issubclass(section, Overrides):
            return [_not_a_field(top + inner, section)]
        return unknown_key(top + inner, _keys_at(model, inner[:-1]), error["input"], model=model)
    return [_wrong_value(error, top, model)]


def _not_a_field(location: Location, section: type[Overrides]) -> Mistake:
    """Return an unknown field of a node's template as a mistake, or one on which the cluster relies.

    The cloud's own spelling (`CpuOptions`, `canIpForward`) is understood.
    """
    name = re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", str(location[-1])).lower()
    allowed = f"the keys {', '.join(section.model_fields)}"
    instead = section.RESERVED.get(name)
    if instead is None:
        meant = near(name, section.model_fields)
        advice = f"did you mean {meant}?" if meant else _NOWHERE
        return Mistake("key.unknown", path_of(location), "a key that is not known", allowed, advice)
    return Mistake(
        "override.reserved",
        path_of(location),
        "a field on which the cluster relies",
        allowed,
        instead.replace("nothing:", "leave it out:", 1)
        if instead.startswith("nothing:")
        else f"write {instead} instead",
    )


def _wrong_value(error: ErrorDetails, top: Location, model: type[BaseModel]) -> Mistake:
    inner = tuple(error["loc"])
    location = top + inner
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        allowed = _wanted_at(model, inner)
        return Mistake(
            "key.missing", path_of(location), "nothing: the key is missing", allowed, f"write {inner[-1]}: …"
        )
    if kind == "invalid_key":
        return Mistake(
            "key.not-text",
            path_of(location),
            shown(inner[-1]),
            "keys that are text",
            "write the key in quotes",
        )
    return Mistake(
        context["code"] if kind == "refused" else _code(kind),
        path_of(location),
        shown(error["input"]),
        _allowed(kind, context, error["msg"], str(inner[-1]) if inner else ""),
        context.get("advice") or _advice(kind, error["input"], context),
    )


def _code(kind: str) -> str:
    """Return the code of a kind of pydantic's errors."""
    if kind in ("greater_than_equal", "less_than_equal", "greater_than"):
        return "value.range"
    if kind in ("string_too_short", "string_too_long", "too_short", "too_long"):
        return "value.length"
    return {"literal_error": "value.choice", "string_pattern_mismatch": "value.form"}.get(kind, "value.type")


def _allowed(kind: str, context: dict[str, Any], message: str, key: str) -> str:
    unit = next((f" ({text})" for ending, text in _UNITS.items() if key.rpartition("_")[2] == ending), "")
    if kind == "refused":
        return str(context["allowed"])
    if kind == "literal_error":
        return "one of " + str(context["expected"]).replace("'", "").replace(" or ", ", ")
    words = {
        "greater_than_equal": "{ge} or more",
        "less_than_equal": "at most {le}",
        "greater_than": "more than {gt}",
        "string_too_short": "at least {min_length} characters",
        "string_too_long": "at most {max_length} characters",
        "too_short": "at least {min_length} of them",
    }
    if kind in words:
        return words[kind].format(**context) + unit
    if kind == "string_pattern_mismatch":
        return IN_WORDS.get(context["pattern"], f"text like {context['pattern']}")
    kinds = {
        "int": f"a whole number{unit}",
        "float": f"a number{unit}",
        "finite": f"a number{unit}",
        "bool": "true or false",
        "string": "text",
        "list": "a list, each item on a line that starts with '- '",
        "model": "a section of keys and values",
        "dict": "a section of keys and values",
    }
    return kinds.get(kind.partition("_")[0], message)


def _advice(kind: str, value: Any, context: dict[str, Any]) -> str:
    if value is None:
        return "give it a value, or leave the key out"
    if isinstance(value, str):
        if kind.startswith("bool_"):
            meant = _BOOLEANS.get(value.lower())
            return f"write {meant}" if meant else "write it without quotes"
        if kind.startswith(("int_", "float_")):
            return _number_advice(value)
        if kind == "literal_error":
            meant = near(value, re.findall(r"'([^']+)'", str(context["expected"])))
            return f"did you mean {meant}?" if meant else ""
        if kind == "string_pattern_mismatch" and context["pattern"] == NAME and (fits := fitting(value)):
            return f"write {fits}"
    if kind.startswith("string_type") and not isinstance(value, dict | list):
        return "write it in quotes"
    return ""


def fitting(name: str) -> str:
    """Return the name that fits and is most like this one; empty if nothing of it is left.

    For example `slurmcpu-parallelcluster` for `slurmCPU_parallelcluster`.
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).lstrip("-0123456789")[:CLUSTER_NAME_LENGTH].rstrip("-")


_BOOLEANS = {**dict.fromkeys(("yes", "on", "y"), "true"), **dict.fromkeys(("no", "off", "n"), "false")}


def _number_advice(text: str) -> str:
    if re.fullmatch(r"[-+]?\d{1,18}(\.\d*)?", text):
        return "write it without quotes"
    if re.fullmatch(r"[-+]?[\d.]+e[-+]?\d+", text, re.IGNORECASE):
        return "write all its digits"
    if re.match(r"[-+]?\d+\D", text):
        return "write the number alone, without a unit"
    return "" if text[:1].isdigit() else "write it in digits"


def _walk(model: type[BaseModel], inner: Location) -> Any:
    """Return the type annotation at a location inside a model."""
    kind: Any = model
    for part in inner:
        kind = plain_type(kind)
        if isinstance(part, int) or typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[-1] if typing.get_args(kind) else Any
        elif isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
            kind = kind.model_fields[part].annotation
        else:
            return Any
    return plain_type(kind)


def same_at(model: type[BaseModel], inner: Location, one: Any, other: Any) -> bool:
    """Return whether a model makes the same of two values at a location.

    So it does of 3 and 3.0 where a price belongs, and not where text belongs: there they are "3" and "3.0".
    At a place that no model has, and where both are refused, other messages say so.
    """
    kind = _annotated_at(model, inner)
    if kind is None or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return True
    adapter = TypeAdapter(kind, config=ConfigDict(strict=True))
    validated = []
    for value in (one, other):
        try:
            validated.append(repr(adapter.validate_python(value)))
        except ValidationError:
            validated.append("")
    return validated[0] == validated[1]


def _annotated_at(model: type[BaseModel], inner: Location) -> Any:
    """Return the whole type at a location inside a model, with its validators; `None` if there is none."""
    owner = _walk(model, inner[:-1])
    if not inner or not (isinstance(owner, type) and issubclass(owner, BaseModel)):
        return next(reversed(typing.get_args(owner)), None)
    field = owner.model_fields.get(str(inner[-1]))
    if field is None or field.annotation is None:
        return None
    return typing.Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def plain_type(kind: Any) -> Any:
    """Return a type without None and without annotations."""
    if typing.get_origin(kind) is typing.Annotated:
        return plain_type(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return plain_type(next(a for a in typing.get_args(kind) if a is not type(None)))
    return kind


def _keys_at(model: type[BaseModel], inner: Location) -> list[str]:
    kind = _walk(model, inner)
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _wanted_at(model: type[BaseModel], inner: Location) -> str:
    """Return what belongs at a key: its values where there are few, else its description."""
    owner = _walk(model, inner[:-1])
    if not (isinstance(owner, type) and issubclass(owner, BaseModel) and inner[-1] in owner.model_fields):
        return ""
    field = owner.model_fields[str(inner[-1])]
    if typing.get_origin(field.annotation) is typing.Literal:
        return f"one of {', '.join(map(str, typing.get_args(field.annotation)))}"
    return (field.description or "").rstrip(".")
