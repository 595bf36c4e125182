"""What Pulumi's engine makes of an unquoted value in a stack file, where PyYAML may make something else.

The engine reads the file with gopkg.in/yaml.v3 (`resolve.go`), writes what it has read, reads that once more,
and hands it to the program as JSON (sdk/go/common/workspace/loaders.go and
sdk/go/common/resource/config/object.go of github.com/pulumi/pulumi). PyYAML follows YAML 1.1 to the letter:
it takes `yes` for true and `1e3` for text, and keeps `1.0` apart from `1`.
`tests/infra/config/data/engine_yaml` has what the engine's own code has read.
"""

from __future__ import annotations

import datetime
import re
from decimal import Decimal

Scalar = None | bool | int | float | str

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{f"{sign}.{word}": float(f"{sign}inf") for sign in ("", "+", "-") for word in ("inf", "Inf", "INF")},
}
_BASES = {"x": 16, "b": 2, "o": 8}
_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO][0-7]+|0[0-7]*|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_FRACTION = re.compile(r"\.[0-9]+(_[0-9]+)*([eE][-+]?[0-9]+)?")
_CLOCK = r"(?P<clock>\d{1,2}:\d{1,2}:\d{1,2})(?P<fraction>\.\d+)?"
_TIMESTAMP = re.compile(
    rf"(\d{{4}})-(\d{{1,2}})-(\d{{1,2}})((?P<between>[Tt]| +){_CLOCK}(?P<zone>Z|[-+]\d\d:\d\d)?)?"
)
_LONGEST = 1000
"""No number has more characters than this: it would be infinite, which the engine takes for text."""
_MOST_WHOLE = (1 << 63) - 1
"""JSON has larger numbers as floating-point ones."""
_MOST_PLAIN, _LEAST_PLAIN = 1e21, 1e-6
"""JSON has the numbers between these in plain digits, so that one without a fraction is whole."""


def value(text: str) -> Scalar:
    """Return the value that a program gets for an unquoted value."""
    if text in _WORDS:
        return _WORDS[text]
    if not re.match(r"[-+.0-9]", text) or len(text) > _LONGEST:
        return text
    if (moment := _moment(text)) is not None:
        return moment
    if text.startswith(".") and not _FRACTION.fullmatch(text):
        return text
    plain = text.replace("_", "")
    if _INTEGER.fullmatch(plain) and (whole := _whole(plain)) is not None:
        return whole
    if _FLOAT.fullmatch(plain) and abs(number := float(plain)) != float("inf"):
        return _as_json(number)
    return text


def _whole(plain: str) -> int | float | None:
    """Return an integer as JSON has it; `None` if it does not fit into 64 bits."""
    digits = plain.lstrip("-+").lower()
    base = _BASES.get(digits[1:2], 8 if digits.startswith("0") else 10)
    number = int(digits[2:] if digits[1:2] in _BASES else digits, base)
    signed = -number if plain.startswith("-") else number
    if -_MOST_WHOLE - 1 <= signed <= _MOST_WHOLE:
        return signed
    return _as_json(float(number)) if plain[0].isdigit() and number >> 64 == 0 else None


def _as_json(number: float) -> int | float:
    """Return what JSON makes of a number: it has no fraction where there is none to write."""
    if number == 0:
        return 0
    plain = _LEAST_PLAIN <= abs(number) < _MOST_PLAIN
    return int(Decimal(repr(number))) if plain and number.is_integer() else number


def _moment(text: str) -> str | None:
    """Return the text that the engine makes of a date or a time; `None` if the text is neither."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None or (match["clock"] and bool(match["zone"]) != (match["between"] in ("T", "t"))):
        return None
    try:
        day = datetime.date(int(match[1]), int(match[2]), int(match[3]))
        hour, minute, second = map(int, (match["clock"] or "0:0:0").split(":"))
        clock = datetime.time(hour, minute, second)
    except ValueError:
        return None
    fraction = (match["fraction"] or "").rstrip("0").rstrip(".")
    zone = match["zone"] or "Z"
    offset = "+0000 UTC" if zone in ("Z", "+00:00", "-00:00") else " ".join([zone.replace(":", "")] * 2)
    return f"{day} {clock}{fraction} {offset}"
