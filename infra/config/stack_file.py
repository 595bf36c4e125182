"""Reads the text of a stack file as plain values, and reports what YAML reads in an unexpected way.

Pulumi reads the same file with another YAML library. What the two read differently is a mistake here: a key
that is there twice, a key that is not text, an unquoted value of which the two make different ones
(`infra.config.engine_yaml`). So is a number in another base, which people read differently.
"""

from __future__ import annotations

import contextlib
import json
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.reader import ReaderError

from infra.config import engine_yaml
from infra.config.fields import TIME_LIMITS, time_limit_advice
from infra.config.mistakes import ConfigError, Location, Mistake, near, path_of, shown
from infra.program import project_file
from infra.program.project_file import ProjectFile
from infra.program.stack import Stack

NAMESPACE = "slurm-stacks"
READ_HERE = (NAMESPACE, "aws", "gcp")
"""The namespaces of the keys whose values are read here as well as by the engine."""
MOST_BYTES = 512 * 1024
MOST_VALUES = 50_000
"""The most values, with aliases written out: a few lines of aliases can stand for more than memory holds."""
DEEPEST = 40

LONGEST_STACK_NAME = 100
_STACK_NAME = re.compile(r"[A-Za-z0-9_.-]+")

_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
# In YAML 1.1, 010 is the number 8 and 1:30 is the number 90.
_OTHER_BASE = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")

# Code, PyYAML's message, our message, and whether the place is where PyYAML's context begins.
_PROBLEMS: tuple[tuple[str, str, str, bool], ...] = (
    (
        "yaml.tab",
        r"character '\\t'",
        "not YAML: a tab stands here; indent by spaces, two for each level",
        False,
    ),
    (
        "yaml.two-colons",
        "mapping values are not",
        "not YAML: a second ': ' in one line, or a key indented too far",
        False,
    ),
    (
        "yaml.open-bracket",
        r"expected ',' or ",
        "not YAML: this bracket is not closed, or a comma is missing after it",
        True,
    ),
    ("yaml.open-quote", "unexpected end of stream", "not YAML: this quote is not closed", True),
    ("yaml.no-colon", "could not find expected ':'", "not YAML: this line has no ': ' after its key", True),
    (
        "yaml.indentation",
        "expected <block end>",
        "not YAML: this is not indented as the lines before it",
        False,
    ),
    (
        "yaml.needs-quotes",
        "cannot start any token",
        "not YAML: a value that begins so must be in quotes",
        False,
    ),
    ("yaml.no-value", "expected the node content", "not YAML: a value is missing here", False),
    (
        "yaml.two-documents",
        "another document",
        "a second document begins here (---), and a stack file is one",
        False,
    ),
    (
        "yaml.unknown-alias",
        "undefined alias",
        "this alias (*) stands for nothing: its anchor (&) must come before it",
        False,
    ),
    ("yaml.anchor-twice", "second occurrence", "this anchor (&) was given before", False),
    (
        "yaml.tag",
        "determine a constructor for the tag",
        "this tag (!) means nothing in a stack file: remove it",
        False,
    ),
    ("yaml.merge", "mapping.* for merging", "<<: takes a section, or an alias (*) of one", False),
)

Same = Callable[[Location, Any, Any], bool]
"""Says of a location in the file, and of two values, whether the two mean the same there."""


def _never(_location: Location, _ours: Any, _theirs: Any) -> bool:
    return False


def check_stack_name(stack: str, folder: Path) -> str:
    """Return the short name, if it is a valid name of a stack.

    Args:
        folder: The project's folder.

    Raises:
        ConfigError: It is not valid; the message names the stacks of `folder`.
    """
    if _STACK_NAME.fullmatch(stack) and len(stack) <= LONGEST_STACK_NAME:
        # The shell completes to Pulumi.local.yaml and Pulumi.local.
        short = stack.removesuffix(".yaml").removeprefix("Pulumi.")
        if short == stack or (project_file.stack_folder(folder) / f"Pulumi.{stack}.yaml").exists():
            return stack
        raise ConfigError(
            f"--stack takes the stack's name, not its file's: write --stack {short}",
            code="stack.name-of-file",
        )
    raise ConfigError(
        f"{shown(stack)} cannot be a stack's name: letters, digits, '-', '_' and '.' are allowed, at most "
        f"{LONGEST_STACK_NAME}.{_stacks_of(project_file.stack_folder(folder))}",
        code="stack.name",
    )


def named(name: str, folder: Path) -> Stack:
    """Return the stack that a name means: stack, organization/stack or organization/project/stack.

    Args:
        folder: The project's folder.

    Raises:
        ConfigError: A stack cannot have that name, or it is of another project.
    """
    *before, short = name.split("/")
    sound = len(before) < 3 and all(_STACK_NAME.fullmatch(part) and part.strip(".") for part in before)
    check_stack_name(short if sound and short else name, folder)
    ours = project_file.name_of(folder)
    if len(before) == 2 and before[1] != ours:
        raise ConfigError(
            f"{name} is a stack of the project {before[1]}, and this is {ours}: write "
            f"--stack {before[0]}/{ours}/{short}, or run the command in that project",
            code="stack.other-project",
        )
    return Stack(folder, short, before[0] if before else None)


def stack_of(path: Path) -> str:
    """Return the stack of a stack file, by the file's name."""
    return path.name.removeprefix("Pulumi.").removesuffix(".yaml")


def read(path: Path, same: Same = _never) -> tuple[Any, list[Mistake]]:
    """Return the file's values, and the mistakes that can be seen only in its text.

    Args:
        same: Says whether a value that the engine reads otherwise is the same at its place.

    Raises:
        ConfigError: The file is missing, or is not YAML.
    """
    text = _text(path)
    loader: Loader | None = None
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, []
        inspection = _Inspection(path.name, same)
        inspection.look(node, ())
        return loader.construct_document(node), inspection.mistakes
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"{path.name}, line {line}: a character that does not belong in a text file "
            f"(U+{ord(text[error.position]):04X}). Save it as plain text in UTF-8.",
            code="file.character",
        ) from None
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(path.name, error, text) from None
    except RecursionError:
        raise _too_deep(path.name) from None
    finally:
        if loader is not None:
            loader.dispose()


def project(folder: Path) -> ProjectFile:
    """Return the project's file; that of a folder without one has no values.

    Raises:
        ConfigError: It cannot be read, or is not YAML.
    """
    return checked_project(folder)[0]


def checked_project(folder: Path, same: Same = _never) -> tuple[ProjectFile, list[Mistake]]:
    """Return the project's file, and the mistakes that can be seen only in its text.

    Args:
        same: As for `read`.

    Raises:
        ConfigError: As for `project`.
    """
    file = folder / project_file.NAME
    content, mistakes = read(file, same) if file.exists() else (None, [])
    return project_file.of(content, folder), mistakes


def merged(shared: ProjectFile, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stack's values as the engine has them: its own, and the project's for keys that it lacks.

    Args:
        own: The values below `config:` of the stack file.
    """
    given = {key: value for key, value in own.items() if value is not None or key not in shared.values}
    return {**shared.values, **given}


def environments(content: Any) -> tuple[str, ...]:
    """Return the Pulumi ESC environments that a stack file names, whose values only the engine reads."""
    named = content.get("environment") if isinstance(content, dict) else None
    if isinstance(named, dict):
        imports = named.get("imports")
        named = imports if isinstance(imports, list) and imports else ["the environment in the stack file"]
    if isinstance(named, str):
        named = [named]
    if not isinstance(named, list):
        return ()
    return tuple(str(next(iter(name), "")) if isinstance(name, dict) else str(name) for name in named)


def secrets(shared: ProjectFile, own: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys of a stack whose values the project declares to be secret, and which are in clear."""
    return frozenset(key for key in shared.secret if own.get(key) is None)


def all_values(path: Path, folder: Path | None = None) -> dict[str, Any]:
    """Return the values of a stack file and of its project, whether they have mistakes or not.

    Args:
        folder: The project's folder; `None` if only the file is known.

    Raises:
        ConfigError: A file cannot be read, or is not YAML.
    """
    return merged(*sources(path, folder)[:2])


def sources(path: Path, folder: Path | None = None) -> tuple[ProjectFile, Mapping[str, Any], tuple[str, ...]]:
    """Return where a stack's values come from: the project, its own file, and ESC environments.

    Args:
        folder: As for `all_values`.

    Raises:
        ConfigError: A file cannot be read, or is not YAML.
    """
    content, _ = read(path)
    own = content.get("config") if isinstance(content, dict) else None
    shared = project(folder or project_file.project_of(path))
    return shared, own if isinstance(own, dict) else {}, environments(content)


def provider(path: Path, folder: Path | None = None) -> str | None:
    """Return the provider that a file names, even if it has mistakes; `None` if it cannot be read.

    Args:
        folder: As for `all_values`.
    """
    found: Any = None
    with contextlib.suppress(ConfigError):
        found = all_values(path, folder)
    for key in (f"{NAMESPACE}:cluster", "provider"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None


def stacks(folder: Path) -> list[str]:
    """Return the stacks of a project by their files, sorted.

    Args:
        folder: The project's folder.
    """
    return _stacks(project_file.stack_folder(folder))


def _text(path: Path) -> str:
    name = path.name
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a file"
            raise ConfigError(f"{name} cannot be read: it is {kind}.", code="file.no-file")
        if status.st_size > MOST_BYTES:
            raise ConfigError(
                f"{name} has {status.st_size // 1024} KiB, and a stack file at most {MOST_BYTES // 1024}. "
                "Is it the right file?",
                code="file.too-large",
            )
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(_missing(path), code="file.missing") from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{name} is not text in UTF-8: save it as plain text in UTF-8.", code="file.not-utf-8"
        ) from None
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}.", code="file.unreadable") from None


def _missing(path: Path) -> str:
    meant = near(stack_of(path), _stacks(path.parent))
    hint = f" Did you mean {meant}?" if meant else ""
    return f"{path.name} does not exist.{hint}{_stacks_of(path.parent)}"


def _stacks(folder: Path) -> list[str]:
    return sorted(map(stack_of, folder.glob("Pulumi.?*.yaml")))


def _stacks_of(folder: Path) -> str:
    stacks = _stacks(folder)
    return f" Stacks here: {', '.join(stacks)}." if stacks else " There are no stacks here."


_INI = re.compile(r"\s*((#|;)[^\n]*\n\s*)*\[[\w ./-]+\]\s*\n\s*[\w.-]+ *=")
"""The beginning of a file in INI's form: a section in brackets, and a first `key = value`."""


def _not_yaml(name: str, error: yaml.MarkedYAMLError, text: str) -> ConfigError:
    if _INI.match(text):
        return ConfigError(
            f"{name}: not YAML: this is an INI file, as ParallelCluster 2 has. A stack file is YAML: "
            "docs/reference/words.md has the key here for each of its words.",
            code="yaml.ini",
        )
    problem = error.problem or error.context or "it cannot be read"
    code, words, at_context = next(
        ((code, words, begins) for code, pattern, words, begins in _PROBLEMS if re.search(pattern, problem)),
        ("yaml.other", f"not YAML: {problem}", False),
    )
    mark = (error.context_mark if at_context else None) or error.problem_mark or error.context_mark
    where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return ConfigError(f"{name}{where}: {words}.", code=code)


def _too_deep(name: str) -> ConfigError:
    return ConfigError(
        f"{name}: sections lie more than {DEEPEST} deep in each other, or an anchor (&) contains itself; "
        "a stack file needs no more than ten.",
        code="file.too-deep",
    )


class _Inspection:
    """Checks the parsed text in one pass, before values are made from it."""

    def __init__(self, name: str, same: Same) -> None:
        self.mistakes: list[Mistake] = []
        self._name = name
        self._same = same
        self._values = 0

    def look(self, node: Node, location: Location) -> None:
        """Check a node and its parts.

        Raises:
            ConfigError: It is too deep or too large, or a key is no text.
        """
        self._values += 1
        if len(location) > DEEPEST:
            raise _too_deep(self._name)
        if self._values > MOST_VALUES:
            raise ConfigError(
                f"{self._name}: more than {MOST_VALUES} values, with aliases (*) written out.",
                code="file.too-large",
            )
        if isinstance(node, MappingNode):
            self._mapping(node, location)
        elif isinstance(node, SequenceNode):
            for index, item in enumerate(node.value):
                self.look(item, (*location, index))
        elif isinstance(node, ScalarNode):
            self._scalar(node, location)

    def _mapping(self, node: MappingNode, location: Location) -> None:
        lines: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                mark = key.start_mark
                raise ConfigError(
                    f"{self._name}, line {mark.line + 1}, column {mark.column + 1}: a key must be text, and "
                    "this is a list or a section: {{ }} needs quotes.",
                    code="file.key-not-text",
                )
            child = (*location, key.value)
            if key.tag != _MERGE:
                if key.tag != f"{_TAG}str" or (_is_ours(child[:-1]) and _other_key(key)):
                    self._add(
                        "key.not-text",
                        child,
                        key.value or "an empty key",
                        "keys that are text",
                        "write the key in quotes",
                    )
                line = key.start_mark.line + 1
                if key.value in lines:
                    first = lines[key.value]
                    given = (
                        f"on line {first} and on line {line}" if first != line else f"twice on line {line}"
                    )
                    self._add("key.twice", child, given, "each key once", "remove one of them")
                lines.setdefault(key.value, line)
            self.look(value, child)

    def _scalar(self, node: ScalarNode, location: Location) -> None:
        if node.style is not None or not any(_is_ours(location, space) for space in READ_HERE):
            return  # It is text for everybody, or it belongs to another program.
        number = node.tag in (f"{_TAG}int", f"{_TAG}float") and len(node.value) < 40
        if not (_is_ours(location) and number and _OTHER_BASE.fullmatch(node.value)):
            self._two_readings(node, location)
        elif location[-1:] == ("time_limit",):
            self._add("time-limit.number", location, node.value, TIME_LIMITS, time_limit_advice(node.value))
        else:
            self._add(
                "value.other-base",
                location,
                node.value,
                "a number in ordinary digits",
                f"YAML reads this as {Loader.value(node)}: write it as it is meant, or text in quotes",
            )

    def _two_readings(self, node: ScalarNode, location: Location) -> None:
        if _is_tagged(node):
            return  # Both go by the tag.
        ours, theirs = Loader.value(node), engine_yaml.value(node.value)
        if repr(ours) == repr(theirs) or self._same(location, ours, theirs):
            return
        meant = theirs if isinstance(theirs, int | float) else ours
        plain = json.dumps(meant) if isinstance(meant, int | float) else ""
        quoted = f"{json.dumps(node.value, ensure_ascii=False)} in quotes"
        if plain and not self._takes(location, node.value):
            advice = f"write {plain}"
        elif plain and self._takes(location, meant):
            advice = f"write {plain}, or {quoted} if it is text"
        else:
            advice = f"write {quoted}"
        self._add(
            "value.two-readings",
            location,
            node.value,
            "what all readers of YAML read alike",
            f"here this is {_with_kind(ours)}, and for Pulumi {_with_kind(theirs)}: {advice}",
        )

    def _takes(self, location: Location, value: object) -> bool:
        """Return whether a key takes a value; yes where nobody knows. No key takes an object of Python's."""
        return not self._same(location, value, object())

    def _add(self, code: str, location: Location, given: str, allowed: str, advice: str) -> None:
        # In all messages paths begin below `config:`.
        path = location[1:] if location[:1] == ("config",) and len(location) > 1 else location
        self.mistakes.append(Mistake(code, path_of(path), given, allowed, advice))


def _is_ours(location: Location, namespace: str = NAMESPACE) -> bool:
    return location[:1] == ("config",) and len(location) > 1 and str(location[1]).startswith(f"{namespace}:")


def _is_tagged(node: ScalarNode) -> bool:
    """Return whether a tag, such as !!str, is written before a value."""
    begin, end = node.start_mark, node.end_mark
    written = begin.buffer[begin.pointer : end.pointer] if begin.buffer else ""
    return "!" in written.removesuffix(node.value)


def _other_key(key: ScalarNode) -> bool:
    """Return whether the engine reads a key, which is text here, as a number or a date."""
    return key.style is None and engine_yaml.value(key.value) != key.value


def _with_kind(value: Any) -> str:
    """Return a value with its kind, for a message."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {json.dumps(value)}"
        case str():
            return f"the text {json.dumps(value, ensure_ascii=False)}"
    return f"the date {value}"


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader, limited to the types of JSON and dates.

    Keys are the text in the file, so that a message can name them. A value that only looks like a number or a
    date (2024-13-01) is text; a later check says what is allowed in its place.
    """

    # Sets, ordered pairs, binary values and all other tags are not supported.
    yaml_constructors: ClassVar[dict[Any, Any]] = {None: yaml.SafeLoader.construct_undefined}

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, MappingNode):
            raise ConstructorError(None, None, "a section is expected here", node.start_mark)
        self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep=deep) for key, value in node.value}

    @classmethod
    def value(cls, node: ScalarNode) -> Any:
        """Return the value of a part of a file."""
        return cls("").construct_object(node)


def _or_text(construct: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def constructed(loader: yaml.SafeLoader, node: Node) -> Any:
        try:
            return construct(loader, node)
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):
            return loader.construct_scalar(node)  # type: ignore[arg-type]

    return constructed


_SAFE: dict[Any, Any] = yaml.SafeLoader.yaml_constructors
for _kind in ("null", "bool", "int", "float", "timestamp"):
    Loader.add_constructor(f"{_TAG}{_kind}", _or_text(_SAFE[f"{_TAG}{_kind}"]))
for _kind in ("str", "seq", "map"):
    Loader.add_constructor(f"{_TAG}{_kind}", _SAFE[f"{_TAG}{_kind}"])
# The values `=` and `<<` are text.
for _kind in ("value", "merge"):
    Loader.add_constructor(f"{_TAG}{_kind}", _SAFE[f"{_TAG}str"])
