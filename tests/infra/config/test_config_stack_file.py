"""The text of a stack file: invalid YAML, YAML that people read differently, and files that are none."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.config import ConfigError, StackConfig, load_file, placeholders, stack_file
from infra.errors import EXIT_USAGE, UserError
from tests.support import sentences
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


# Content of the file, code of the error.
MESSAGES: dict[str, tuple[str | bytes, str]] = {
    "a tab": ("config:\n\tslurm: 1\n", "yaml.tab"),
    "an open bracket": ("config:\n  a: [1,\n    2\n", "yaml.open-bracket"),
    "a missing comma": (
        "config: {a: 1 b: 2}",
        "yaml.open-bracket",
    ),
    "an open quote": ("config:\n  a: 'b\n  c: d\n", "yaml.open-quote"),
    "a second colon": ("config:\n  a: b: c\n", "yaml.two-colons"),
    "an indentation": (
        "config:\n    a: 1\n  b: 2\n",
        "yaml.indentation",
    ),
    "no colon": ("config:\n  a: 1\n  foo\n  b: 2\n", "yaml.no-colon"),
    "an odd value": ("config:\n  a: @b\n", "yaml.needs-quotes"),
    "no value": ("config: {a: ]}", "yaml.no-value"),
    "an escape": ('config: "\\q"', "yaml.other"),
    "an INI file": ("# pcluster\n[global]\ncluster_template = default\n\n[aws]\n", "yaml.ini"),
    "two documents": (GOOD + "---\na: 1\n", "yaml.two-documents"),
    "a lost alias": ("config: *x\n", "yaml.unknown-alias"),
    "an anchor twice": ("a: &x 1\nb: &x 2\n", "yaml.anchor-twice"),
    "a merge of text": ("config: {<<: 3}\n", "yaml.merge"),
    "a program as a tag": (
        "config: !!python/object/apply:os.system [x]\n",
        "yaml.tag",
    ),
    "a name as a tag": ("config:\n  a: !!python/name:os.system\n", "yaml.tag"),
    "an own tag": (
        "config:\n  a: !secret b\n",
        "yaml.tag",
    ),
    "a list as a key": ("config: {[1, 2]: 3}\n", "file.key-not-text"),
    "a template": (
        "config:\n  a: {{ name }}\n",
        "file.key-not-text",
    ),
    "an anchor in itself": (f"config: &a\n  {CLUSTER}: *a\n", "file.too-deep"),
    "depth in brackets": ("config: " + "[" * 50 + "]" * 50, "file.too-deep"),
    "more depth": ("config: " + "[" * 20_000, "file.too-deep"),
    "depth by lines": ("\n".join(" " * i + f"a{i}:" for i in range(500)), "file.too-deep"),
    "depth by aliases": (
        "x0: &x0 [1]\n" + "".join(f"x{i}: &x{i} [*x{i - 1}]\n" for i in range(1, 50)),
        "file.too-deep",
    ),
    "a zero byte": (GOOD.encode() + b"# \x00\n", "file.character"),
    "a bell": (GOOD + "# \x07\n", "file.character"),
    "binary": (bytes(range(256)), "file.not-utf-8"),
    "UTF-16": (GOOD.encode("utf-16"), "file.not-utf-8"),
    "UTF-16 without a mark": (GOOD.encode("utf-16-le"), "file.character"),
    "Latin-1": (changed("local.small", "größe").encode("latin-1"), "file.not-utf-8"),
    "much": (b"# " + b"x" * 600_000, "file.too-large"),
    "nothing": ("", "file.empty"),
    "blank lines": ("\n \n\n", "file.empty"),
    "comments": ("# a\n# b\n", "file.empty"),
    "a document of nothing": ("---\n...\n", "file.empty"),
    "text": ("just text", "file.no-keys"),
    "a list": ("- a\n- b\n", "file.no-keys"),
}


@pytest.mark.parametrize(("content", "code"), MESSAGES.values(), ids=MESSAGES)
def test_what_is_no_stack_file_at_all(file: Path, content: str | bytes, code: str) -> None:
    error = refused(file, content)
    assert error.code == code
    assert len(str(error).splitlines()) == 1
    assert error.mistakes == ()


# All mistakes, each with path and code.
Expected = list[tuple[str, str]]
MISTAKES: dict[str, tuple[str, Expected]] = {
    "an empty config": ("config:\n", [("config", "file.no-config")]),
    "no config": ("encryptionsalt: v1\n", [("config", "file.no-config")]),
    "a config of text": ("config: 3\n", [("config", "file.no-config")]),
    "nothing in config": ("config: {}\n", [(CLUSTER, "value.type")]),
    "config misspelt": (
        "confg: {a: 1}\n",
        [("confg", "key.unknown")],
    ),
    "config left out": (
        f"{CLUSTER}: {{provider: local}}\n",
        [(CLUSTER, "key.at-top")],
    ),
    "no namespace": (
        "config:\n  cluster: {provider: local}\n",
        [("cluster", "key.unknown")],
    ),
    "a cluster of text": (
        f"config:\n  {CLUSTER}: hello\n",
        [(CLUSTER, "value.type")],
    ),
    "a cluster as a list": (f"config:\n  {CLUSTER}: [a]\n", [(CLUSTER, "value.type")]),
    "a key twice": (
        changed("provider: local", "provider: local\n    provider: local"),
        [(f"{CLUSTER}.provider", "key.twice")],
    ),
    "a key twice on a line": (
        changed("max: 10", "max: 10, max: 3"),
        [(f"{PARTITION}.nodes.max", "key.twice")],
    ),
    "a key twice, once in quotes": (
        changed("provider: local", "provider: local\n    'provider': local"),
        [(f"{CLUSTER}.provider", "key.twice")],
    ),
    "config twice": (
        f"config: {{}}\n{GOOD}",
        [("config", "key.twice")],
    ),
    "a number as a key": (
        changed("max: 10", "1: 10"),
        [(f"{PARTITION}.nodes.1", "key.not-text")],
    ),
    "a word that is true": (
        changed("slurm: {", "slurm: {on: 1, "),
        [(f"{CLUSTER}.slurm.on", "key.not-text")],
    ),
    "a date as a key": (
        changed("slurm: {", "slurm: {2024-01-01: 1, "),
        [(f"{CLUSTER}.slurm.2024-01-01", "key.not-text")],
    ),
    "null as a key": (
        changed("slurm: {", "slurm: {~: 1, "),
        [(f'{CLUSTER}.slurm["~"]', "key.not-text")],
    ),
    "a number on top": ("1: 2\n" + GOOD, [("1", "key.not-text")]),
    "an octal number": (
        changed("max: 10", "max: 010"),
        [(f"{PARTITION}.nodes.max", "value.other-base")],
    ),
    "a number in base 60": (
        changed("max: 10", "max: 1:30"),
        [(f"{PARTITION}.nodes.max", "value.other-base")],
    ),
    "a bare time": (
        changed("default: true", "time_limit: 24:00:00"),
        [(f"{PARTITION}.time_limit", "time-limit.number")],
    ),
    "bare minutes": (
        changed("default: true", "time_limit: 90"),
        [(f"{PARTITION}.time_limit", "time-limit.number")],
    ),
    "a date": (
        changed("local.small", "2024-01-01"),
        [(f"{PARTITION}.instance_type", "value.two-readings")],
    ),
    "no date": (
        changed("local.small", "2024-13-01"),
        [(f"{PARTITION}.instance_type", "instance-type.unknown")],
    ),
    "a tag that lies": (
        changed("true", "!!bool hello"),
        [(f"{PARTITION}.default", "value.type")],
    ),
    "another tag that lies": (
        changed("max: 10", "max: !!timestamp x"),
        [(f"{PARTITION}.nodes.max", "value.type")],
    ),
    "a number of 5000 digits": (
        changed("max: 10", "max: " + "9" * 5000),
        [(f"{PARTITION}.nodes.max", "value.type")],
    ),
    "a number of 40 digits": (
        changed("max: 10", "max: " + "9" * 40),
        [(f"{PARTITION}.nodes.max", "value.range")],
    ),
    "a power": (
        changed("max: 10", "max: 1e3"),
        [(f"{PARTITION}.nodes.max", "value.two-readings")],
    ),
    "a word for true": (
        changed("true", "yes"),
        [(f"{PARTITION}.default", "value.two-readings")],
    ),
    "a word for true in quotes": (
        changed("true", "'yes'"),
        [(f"{PARTITION}.default", "value.type")],
    ),
    "a key that is a number for Pulumi": (
        changed("slurm: {", "slurm: {08: 1, "),
        [(f"{CLUSTER}.slurm.08", "key.not-text")],
    ),
    "a secret": (
        changed("local.small", "{secure: v1}"),
        [(f"{PARTITION}.instance_type", "value.secret")],
    ),
    "a secret of a section": (
        f"config:\n  {CLUSTER}: {{secure: v1}}\n",
        [(CLUSTER, "value.secret")],
    ),
    "a secret in a list": (
        changed("slurm: {", "hooks: [{role: all, source: {secure: v1}}]\n    slurm: {"),
        [(f"{CLUSTER}.hooks[0].source", "value.secret")],
    ),
    "what only looks like a secret": (
        changed("local.small", "{secure: v1, other: v2}"),
        [(f"{PARTITION}.instance_type", "value.type")],
    ),
    "infinity": (
        changed("time: 4", "time: .inf"),
        [(f"{CLUSTER}.slurm.suspend_time", "value.type")],
    ),
    "no number": (
        changed("time: 4", "time: .nan"),
        [(f"{CLUSTER}.slurm.suspend_time", "value.type")],
    ),
    "what a terminal obeys": (
        changed("local.small", '"\\e[31m\\u202e\\x9b"'),
        [(f"{PARTITION}.instance_type", "instance-type.unknown")],
    ),
    "lines in a value": (
        changed("local.small", '"a\\n    allowed  all"'),
        [(f"{PARTITION}.instance_type", "instance-type.unknown")],
    ),
    "lines in a key": (
        changed("slurm: {", 'slurm: {"a\\n\\e[2J": 1, '),
        [(f'{CLUSTER}.slurm["a\\n\\u001b[2J"]', "key.unknown")],
    ),
    "half a character": (
        changed("local.small", '"\\ud800"'),
        [(f"{PARTITION}.instance_type", "instance-type.unknown")],
    ),
    "min over max": (
        changed("max: 10", "min: 5, max: 2"),
        [(f"{PARTITION}.nodes", "partition.nodes-order")],
    ),
}


@pytest.mark.parametrize(("content", "expected"), MISTAKES.values(), ids=MISTAKES)
def test_what_stands_at_the_wrong_place_or_is_read_otherwise(
    file: Path, content: str, expected: Expected
) -> None:
    error = refused(file, content)
    assert [(m.path, m.code) for m in error.mistakes] == expected
    assert all(str(mistake) in str(error) for mistake in error.mistakes)


def test_the_sentences(file: Path, pytestconfig: pytest.Config) -> None:
    contents = [content for content, _ in [*MESSAGES.values(), *MISTAKES.values()]]
    errors = [refused(file, content) for content in contents]
    hooks = "[{role: all, source: hooks/a.sh}, {role: all, source: hooks.d}, {role: all, source: crlf.sh}]"
    file.write_text(f"{GOOD}    hooks: {hooks}\n")
    file.with_name("hooks.d").mkdir()
    file.with_name("crlf.sh").write_bytes(b"#!/bin/sh\r\n")
    for scripts, name in ((True, file.name), (False, "Pulumi.none.yaml")):
        with pytest.raises(ConfigError) as caught:
            load_file(file.with_name(name), scripts=scripts)
        errors.append(caught.value)
    file.write_text(GOOD + "    image: {id: PLACEHOLDER_IMAGE}\n    budget: {max_usd: 0}\n")
    errors.append(refused(file))
    unfilled = [mistake for mistake in errors[-1].mistakes if mistake.unfilled]
    with pytest.raises(UserError) as to_fill_in:
        placeholders.refuse(file.name, unfilled)
    file.unlink()
    file.mkdir()
    errors.append(refused(file))
    file.rmdir()
    file.symlink_to(file.name)
    errors.append(refused(file))
    for name in ("Pulumi.mine.yaml", "a b"):
        with pytest.raises(ConfigError) as caught:
            stack_file.check_stack_name(name, file.parent / "empty")
        errors.append(caught.value)
    texts = [text for e in errors for text in ([*map(str, e.mistakes)] or [e.printed])]
    sentences.check(pytestconfig, __file__, [*texts, to_fill_in.value.printed])


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
        changed("true", "TRUE"),
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
    assert (mistake.path, mistake.code) == ("secretprovider", "key.unknown")
    assert len(refused(file, text.replace("max: 10", "max: four")).mistakes) == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert refused(tmp_path / "Pulumi.locl.yaml").code == "file.missing"
    for name in ("local", "big-one"):
        (tmp_path / f"Pulumi.{name}.yaml").write_text(GOOD)
    (tmp_path / "Pulumi.yaml").write_text("name: x")
    error = refused(tmp_path / "Pulumi.locl.yaml")
    assert "local?" in str(error)
    assert "big-one, local" in str(error)
    assert refused(tmp_path / "no" / "Pulumi.x.yaml").code == "file.missing"


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.dir.yaml").mkdir()
    assert refused(tmp_path / "Pulumi.dir.yaml").code == "file.no-file"
    # Reading a pipe would wait forever for a writer.
    os.mkfifo(tmp_path / "Pulumi.pipe.yaml")
    assert refused(tmp_path / "Pulumi.pipe.yaml").code == "file.no-file"
    for name in ("a", "b"):
        (tmp_path / f"Pulumi.{name}.yaml").symlink_to(f"Pulumi.{'b' if name == 'a' else 'a'}.yaml")
    error = refused(tmp_path / "Pulumi.a.yaml")
    assert error.code == "file.unreadable"
    assert os.strerror(errno.ELOOP) in str(error)


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
    assert refused(file).code == "file.unreadable"


def test_scripts_are_looked_for_to_deploy_and_not_to_end(file: Path) -> None:
    hooks = "[{role: all, source: hooks/a.sh}, {role: all, source: hooks}, {role: login, source: b.sh}]"
    file.write_text(f"{GOOD}    hooks: {hooks}\n")
    (file.parent / "hooks").mkdir()
    (file.parent / "b.sh").write_text("#!/bin/sh\n")
    assert len(load_file(file).cluster.hooks) == 3
    with pytest.raises(ConfigError) as caught:
        load_file(file, scripts=True)
    assert [(m.path, m.given, m.code) for m in caught.value.mistakes] == [
        (f"{CLUSTER}.hooks[0].source", '"hooks/a.sh"', "source.missing"),
        (f"{CLUSTER}.hooks[1].source", '"hooks"', "source.unusable"),
    ]


@pytest.mark.parametrize("content", [b"#!/bin/sh\r\ntrue\r\n", b"# Copyright\n#!/bin/sh\n", b"true\n"])
def test_every_script_that_machines_start_names_its_interpreter_first(file: Path, content: bytes) -> None:
    """Each key whose file is started by itself; a package is not, and a script's text is a key of its own."""
    scripts = "slurm: {prolog: {source: a.sh}, epilog: {source: a.sh}, "
    file.write_text(changed("slurm: {", scripts) + "    hooks: [{role: all, source: a.sh}]\n")
    (file.parent / "a.sh").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_file(file, scripts=True)
    assert [(m.path, m.code) for m in caught.value.mistakes] == [
        (f"{CLUSTER}.{key}.source", "source.interpreter")
        for key in ("hooks[0]", "slurm.prolog", "slurm.epilog")
    ]
