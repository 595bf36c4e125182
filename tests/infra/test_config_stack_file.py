"""The text of a stack file: invalid YAML, YAML that people read differently, and files that are none."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.config import ConfigError, StackConfig, load_file
from infra.errors import EXIT_USAGE
from tests.support.stack_values import CLUSTER

GOOD = """\
config:
  slurm-stacks:cluster:
    provider: local
    partitions:
      - {name: debug, instance_type: local.small, nodes: {max: 10}, default: true}
    slurm: {suspend_time: 4}
"""
PARTITION = f"{CLUSTER}.partitions[0]"


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "Pulumi.mine.yaml"


def refused(file: Path, content: str | bytes | None = None) -> ConfigError:
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        load_file(file)
    assert caught.value.exit_code == EXIT_USAGE
    assert str(caught.value).startswith(file.name)
    return caught.value


# Each entry has the whole message.
MESSAGES: dict[str, tuple[str | bytes, str]] = {
    "a tab": ("config:\n\tslurm: 1\n", ", line 2, column 1: not YAML: a tab stands here"),
    "an open bracket": ("config:\n  a: [1,\n    2\n", ", line 2, column 6: not YAML: this bracket is not"),
    "a missing comma": (
        "config: {a: 1 b: 2}",
        ", line 1, column 9: not YAML: this bracket is not closed, or",
    ),
    "an open quote": ("config:\n  a: 'b\n  c: d\n", ", line 2, column 6: not YAML: this quote is not closed"),
    "a second colon": ("config:\n  a: b: c\n", ", line 2, column 7: not YAML: a second ': ' in one line"),
    "an indentation": (
        "config:\n    a: 1\n  b: 2\n",
        ", line 3, column 3: not YAML: this is not indented as",
    ),
    "no colon": ("config:\n  a: 1\n  foo\n  b: 2\n", ", line 3, column 3: not YAML: this line has no ': '"),
    "an odd value": ("config:\n  a: @b\n", ", line 2, column 6: not YAML: a value that begins so must be in"),
    "no value": ("config: {a: ]}", "not YAML: a value is missing here"),
    "an escape": ('config: "\\q"', "not YAML: found unknown escape character 'q'"),
    "two documents": (GOOD + "---\na: 1\n", ", line 7, column 1: a second document begins here"),
    "a lost alias": ("config: *x\n", ", line 1, column 9: this alias (*) stands for nothing"),
    "an anchor twice": ("a: &x 1\nb: &x 2\n", ", line 2, column 4: this anchor (&) was given before"),
    "a merge of text": ("config: {<<: 3}\n", ", line 1, column 14: <<: takes a section"),
    "a program as a tag": (
        "config: !!python/object/apply:os.system [x]\n",
        "column 9: this tag (!) means nothing",
    ),
    "a name as a tag": ("config:\n  a: !!python/name:os.system\n", "column 6: this tag (!) means nothing"),
    "an own tag": (
        "config:\n  a: !secret b\n",
        "column 6: this tag (!) means nothing in a stack file: remove it",
    ),
    "a list as a key": ("config: {[1, 2]: 3}\n", ", line 1, column 10: a key must be text"),
    "a template": (
        "config:\n  a: {{ name }}\n",
        ", line 2, column 7: a key must be text, and this is a list or",
    ),
    "an anchor in itself": (f"config: &a\n  {CLUSTER}: *a\n", "or an anchor (&) contains itself"),
    "depth in brackets": ("config: " + "[" * 50 + "]" * 50, ": sections lie more than 40 deep in each other"),
    "more depth": ("config: " + "[" * 20_000, ": sections lie more than 40 deep in each other"),
    "depth by lines": ("\n".join(" " * i + f"a{i}:" for i in range(500)), ": sections lie more than 40 deep"),
    "depth by aliases": (
        "x0: &x0 [1]\n" + "".join(f"x{i}: &x{i} [*x{i - 1}]\n" for i in range(1, 50)),
        ": sections lie more than 40 deep",
    ),
    "a zero byte": (GOOD.encode() + b"# \x00\n", ", line 7: a character that does not belong in a text"),
    "a bell": (GOOD + "# \x07\n", ", line 7: a character that does not belong in a text file (U+0007)"),
    "binary": (bytes(range(256)), " is not text in UTF-8: save it as plain text in UTF-8."),
    "UTF-16": (GOOD.encode("utf-16"), " is not text in UTF-8"),
    "UTF-16 without a mark": (GOOD.encode("utf-16-le"), ", line 1: a character that does not belong"),
    "Latin-1": (changed("local.small", "größe").encode("latin-1"), " is not text in UTF-8"),
    "much": (b"# " + b"x" * 600_000, " has 585 KiB, and a stack file at most 512. Is it the right file?"),
    "nothing": ("", " is empty: it needs `config:`"),
    "blank lines": ("\n \n\n", " is empty: it needs `config:`"),
    "comments": ("# a\n# b\n", " is empty: it needs `config:`"),
    "a document of nothing": ("---\n...\n", " is empty: it needs `config:`"),
    "text": ("just text", ' must be keys and values, beginning with `config:`, not "just text".'),
    "a list": ("- a\n- b\n", ' must be keys and values, beginning with `config:`, not ["a", "b"].'),
}


@pytest.mark.parametrize(("content", "words"), MESSAGES.values(), ids=MESSAGES)
def test_what_is_no_stack_file_at_all(file: Path, content: str | bytes, words: str) -> None:
    error = refused(file, content)
    assert words in str(error)
    assert len(str(error).splitlines()) == 1
    assert error.mistakes == ()


# All mistakes, each with path, given value, a part of what is allowed, and a part of the advice.
Expected = list[tuple[str, str, str, str]]
NULL, LOST = "nothing (null)", "nothing: the key is missing"
MISTAKES: dict[str, tuple[str, Expected]] = {
    "an empty config": ("config:\n", [("config", NULL, "a section", f"with `{CLUSTER}` in it")]),
    "no config": ("encryptionsalt: v1\n", [("config", LOST, "a section", f"with `{CLUSTER}` in it")]),
    "a config of text": ("config: 3\n", [("config", "3", "a section", f"with `{CLUSTER}` in it")]),
    "nothing in config": ("config: {}\n", [(CLUSTER, LOST, "a section", "see Pulumi.local.yaml")]),
    "config misspelt": (
        "confg: {a: 1}\n",
        [("confg", "a key that is not known", "config", "did you mean config?")],
    ),
    "config left out": (
        f"{CLUSTER}: {{provider: local}}\n",
        [(CLUSTER, "a key at the top of the file", "below `config:`", "indent it")],
    ),
    "no namespace": (
        "config:\n  cluster: {provider: local}\n",
        [("cluster", "a key that is not known", CLUSTER, f"did you mean {CLUSTER}?")],
    ),
    "a cluster of text": (
        f"config:\n  {CLUSTER}: hello\n",
        [(CLUSTER, '"hello"', "a section", "see Pulumi")],
    ),
    "a cluster as a list": (f"config:\n  {CLUSTER}: [a]\n", [(CLUSTER, '["a"]', "a section", "see Pulumi")]),
    "a key twice": (
        changed("provider: local", "provider: local\n    provider: local"),
        [(f"{CLUSTER}.provider", "on line 3 and on line 4", "each key once", "remove one of them")],
    ),
    "a key twice on a line": (
        changed("max: 10", "max: 10, max: 3"),
        [(f"{PARTITION}.nodes.max", "twice on line 5", "each key once", "remove one of them")],
    ),
    "a key twice, once in quotes": (
        changed("provider: local", "provider: local\n    'provider': local"),
        [(f"{CLUSTER}.provider", "on line 3 and on line 4", "each key once", "remove one of them")],
    ),
    "config twice": (
        f"config: {{}}\n{GOOD}",
        [("config", "on line 1 and on line 2", "each key once", "remove one of them")],
    ),
    "a number as a key": (
        changed("max: 10", "1: 10"),
        [(f"{PARTITION}.nodes.1", "1", "keys that are text", "quotes")],
    ),
    "a word that is true": (
        changed("slurm: {", "slurm: {on: 1, "),
        [(f"{CLUSTER}.slurm.on", "on", "keys that are text", "write the key in quotes")],
    ),
    "a date as a key": (
        changed("slurm: {", "slurm: {2024-01-01: 1, "),
        [(f"{CLUSTER}.slurm.2024-01-01", "2024-01-01", "keys that are text", "quotes")],
    ),
    "null as a key": (
        changed("slurm: {", "slurm: {~: 1, "),
        [(f'{CLUSTER}.slurm["~"]', "~", "keys that are text", "quotes")],
    ),
    "a number on top": ("1: 2\n" + GOOD, [("1", "1", "keys that are text", "quotes")]),
    "an octal number": (
        changed("max: 10", "max: 010"),
        [(f"{PARTITION}.nodes.max", "010", "ordinary digits", "as 8")],
    ),
    "a number in base 60": (
        changed("max: 10", "max: 1:30"),
        [(f"{PARTITION}.nodes.max", "1:30", "ordinary digits", "YAML reads this as 90")],
    ),
    "a bare time": (
        changed("default: true", "time_limit: 24:00:00"),
        [(f"{PARTITION}.time_limit", "24:00:00", "in quotes", 'write it in quotes, time_limit: "24:00:00"')],
    ),
    "bare minutes": (
        changed("default: true", "time_limit: 90"),
        [(f"{PARTITION}.time_limit", "90", "in quotes", '"90" for 90 minutes')],
    ),
    "a date": (
        changed("local.small", "2024-01-01"),
        [(f"{PARTITION}.instance_type", '"2024-01-01"', "text", "in quotes")],
    ),
    "no date": (
        changed("local.small", "2024-13-01"),
        [(f"{PARTITION}.instance_type", '"2024-13-01"', "an instance type of local", "instance_types")],
    ),
    "a tag that lies": (
        changed("true", "!!bool hello"),
        [(f"{PARTITION}.default", '"hello"', "true or false", "quotes")],
    ),
    "another tag that lies": (
        changed("max: 10", "max: !!timestamp x"),
        [(f"{PARTITION}.nodes.max", '"x"', "a whole number", "in digits")],
    ),
    "a number of 5000 digits": (
        changed("max: 10", "max: " + "9" * 5000),
        [(f"{PARTITION}.nodes.max", '"' + "9" * 78 + "…", "a whole number", "")],
    ),
    "a number of 40 digits": (
        changed("max: 10", "max: " + "9" * 40),
        [(f"{PARTITION}.nodes.max", "9" * 40, "at most 5000", "")],
    ),
    "a power": (
        changed("max: 10", "max: 1e3"),
        [(f"{PARTITION}.nodes.max", '"1e3"', "a whole number", "all its digits")],
    ),
    "infinity": (
        changed("time: 4", "time: .inf"),
        [(f"{CLUSTER}.slurm.suspend_time", "Infinity", "a whole number", "")],
    ),
    "no number": (
        changed("time: 4", "time: .nan"),
        [(f"{CLUSTER}.slurm.suspend_time", "NaN", "a whole number", "")],
    ),
    "what a terminal obeys": (
        changed("local.small", '"\\e[31m\\u202e\\x9b"'),
        [
            (
                f"{PARTITION}.instance_type",
                '"\\u001b[31m\\u202e\\u009b"',
                "an instance type of local",
                "instance_types",
            )
        ],
    ),
    "lines in a value": (
        changed("local.small", '"a\\n    allowed  all"'),
        [
            (
                f"{PARTITION}.instance_type",
                '"a\\n    allowed  all"',
                "an instance type of local",
                "instance_types",
            )
        ],
    ),
    "lines in a key": (
        changed("slurm: {", 'slurm: {"a\\n\\e[2J": 1, '),
        [(f'{CLUSTER}.slurm["a\\n\\u001b[2J"]', "a key that is not known", "suspend_time", "stack.json")],
    ),
    "half a character": (
        changed("local.small", '"\\ud800"'),
        [(f"{PARTITION}.instance_type", '"\\ud800"', "an instance type of local", "instance_types")],
    ),
    "min over max": (
        changed("max: 10", "min: 5, max: 2"),
        [(f"{PARTITION}.nodes", '{"min": 5, "max": 2}', "min up to", "")],
    ),
}


@pytest.mark.parametrize(("content", "expected"), MISTAKES.values(), ids=MISTAKES)
def test_what_stands_at_the_wrong_place_or_is_read_otherwise(
    file: Path, content: str, expected: Expected
) -> None:
    error = refused(file, content)
    assert [(m.path, m.given) for m in error.mistakes] == [(path, given) for path, given, *_ in expected]
    for mistake, (*_, allowed, advice) in zip(error.mistakes, expected, strict=True):
        assert allowed in mistake.allowed
        assert advice in mistake.advice
        assert str(mistake) in str(error)


def test_mistakes_of_the_text_stand_with_all_others(file: Path) -> None:
    content = "1: x\n" + changed("max: 10", "max: 010, max: ten") + "    budget: {max_usd: 0}\n"
    paths = [mistake.path for mistake in refused(file, content).mistakes]
    assert paths == ["1", f"{PARTITION}.nodes.max", f"{PARTITION}.nodes.max", f"{CLUSTER}.budget.max_usd"]


@pytest.mark.parametrize(
    "content",
    [
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("\n", "\r"),
        "\ufeff" + GOOD,
        f"%YAML 1.1\n---\n{GOOD}...\n",
        changed("true", "yes"),
        changed("10", "1_0"),
        changed("10", "0xa"),
        changed("10", "!!int 10"),
        changed("debug", "'debug'"),
        GOOD + "  other:mode: 0755\n  other:times: [1:30, 2024-01-01, 2024-99-99]\n",
        GOOD + "encryptionsalt: v1:abc\nenvironment: [shared]\n",
    ],
    ids=range(11),
)
def test_what_may_be_written_otherwise(file: Path, content: str) -> None:
    file.write_bytes(content.encode())
    read = load_file(file)
    assert isinstance(read, StackConfig)
    assert read.cluster.partitions[0].nodes.max == 10


def test_merges_and_anchors_are_understood(file: Path) -> None:
    file.write_text(
        "config:\n  slurm-stacks:cluster:\n    provider: local\n    partitions:\n"
        "      - &first {name: a, instance_type: local.small, spot: false}\n      - {<<: *first, name: b}\n"
        "      - {<<: [*first, {exclusive: true}], name: c}\n"
    )
    found = load_file(file).cluster.partitions
    assert [(p.name, p.instance_type, p.exclusive) for p in found] == [
        ("a", "local.small", False),
        ("b", "local.small", False),
        ("c", "local.small", True),
    ]


def test_unknown_keys_beside_config_are_listed_with_the_rest(file: Path) -> None:
    text = GOOD + "encryptionsalt: v1:x\nsecretprovider: x\n"
    (mistake,) = refused(file, text).mistakes
    assert mistake.advice == "did you mean secretsprovider?"
    assert len(refused(file, text.replace("max: 10", "max: four")).mistakes) == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "There are no stacks here." in str(refused(tmp_path / "Pulumi.locl.yaml"))
    for name in ("local", "big-one"):
        (tmp_path / f"Pulumi.{name}.yaml").write_text(GOOD)
    (tmp_path / "Pulumi.yaml").write_text("name: x")
    error = refused(tmp_path / "Pulumi.locl.yaml")
    assert str(error) == "Pulumi.locl.yaml does not exist. Did you mean local? Stacks here: big-one, local."
    assert "does not exist" in str(refused(tmp_path / "no" / "Pulumi.x.yaml"))


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.dir.yaml").mkdir()
    assert str(refused(tmp_path / "Pulumi.dir.yaml")) == "Pulumi.dir.yaml cannot be read: it is a folder."
    # Reading a pipe would wait forever for a writer.
    os.mkfifo(tmp_path / "Pulumi.pipe.yaml")
    assert str(refused(tmp_path / "Pulumi.pipe.yaml")) == "Pulumi.pipe.yaml cannot be read: it is not a file."
    for name in ("a", "b"):
        (tmp_path / f"Pulumi.{name}.yaml").symlink_to(f"Pulumi.{'b' if name == 'a' else 'a'}.yaml")
    assert "Too many levels of symbolic links" in str(refused(tmp_path / "Pulumi.a.yaml"))


@pytest.fixture
def ordinary_user(tmp_path: Path) -> Iterator[None]:
    """Make this process the user nobody for a while, because root may read everything."""
    if os.getuid() != 0:
        yield
        return
    folder = tmp_path
    while folder != Path("/tmp") and folder != folder.parent:
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o711)
        folder = folder.parent
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_a_file_of_somebody_elses(file: Path, ordinary_user: None) -> None:
    uid = os.geteuid()
    if os.getuid() == 0:
        os.seteuid(0)
    file.write_text(GOOD)
    file.chmod(0)
    if os.getuid() == 0:
        os.seteuid(uid)
    assert str(refused(file)) == "Pulumi.mine.yaml cannot be read: Permission denied."


def test_scripts_are_looked_for_to_deploy_and_not_to_end(file: Path) -> None:
    hooks = "[{role: all, source: hooks/a.sh}, {role: all, source: hooks}, {role: login, source: b.sh}]"
    file.write_text(f"{GOOD}    hooks: {hooks}\n")
    (file.parent / "hooks").mkdir()
    (file.parent / "b.sh").write_text("true\n")
    assert len(load_file(file).cluster.hooks) == 3
    with pytest.raises(ConfigError) as caught:
        load_file(file, scripts=True)
    assert [(m.path, m.given) for m in caught.value.mistakes] == [
        (f"{CLUSTER}.hooks[0].source", '"hooks/a.sh"'),
        (f"{CLUSTER}.hooks[1].source", '"hooks"'),
    ]
