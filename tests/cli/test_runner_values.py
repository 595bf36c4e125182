"""The configuration as the CLI would pass it to the program, and values on the wire to the SDK."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.engine import project, wire
from infra.program.stack import Stack
from tests.support import sentences, texts


def write(path: Path, settings: str, stack: str) -> Path:
    (path / "Pulumi.yaml").write_text(settings)
    (path / "Pulumi.s.yaml").write_text(stack)
    return path


def test_the_configuration_is_what_the_cli_would_pass(tmp_path: Path) -> None:
    loaded = project.load(
        Stack(
            write(
                tmp_path,
                """
            name: p
            config:
              declared: {type: string, default: d}
              overridden: {type: integer, default: 1}
              object: {type: object, default: {enabled: false}}
              none: {type: string}
              aws:region: {value: eu-west-1}
            """,
                """
            config:
              p:overridden: 2
              short: text
              aws:profile: x
              flag: true
              no-flag: false
              number: 1.5
              list: [1, {a: b}]
              date: {day: 2024-01-02}
              empty:
            """,
            ),
            "s",
        ),
    )
    assert loaded.name == "p"
    assert loaded.config == {
        "p:declared": "d",
        "p:overridden": "2",
        "p:object": '{"enabled": false}',
        "aws:region": "eu-west-1",
        "p:short": "text",
        "aws:profile": "x",
        "p:flag": "true",
        "p:no-flag": "false",
        "p:number": "1.5",
        "p:list": '[1, {"a": "b"}]',
        "p:date": '{"day": "2024-01-02"}',
    }
    assert loaded.secure == set()


def test_what_is_encrypted_is_known_to_be_so(tmp_path: Path) -> None:
    loaded = project.load(
        Stack(write(tmp_path, "name: p", "config: {a: {secure: x}, b: {c: [{secure: y}], d: 1}, e: 2}"), "s")
    )
    assert loaded.secure == {"p:a", "p:b"}
    assert loaded.config["p:a"] == "[secret]"
    assert json.loads(loaded.config["p:b"]) == {"c": ["[secret]"], "d": 1}


@pytest.mark.parametrize(
    ("settings", "stack", "code"),
    [
        ("runtime: python", "", "project.no-name"),
        ("name: p", "- a", "project.not-a-mapping"),
        ("name: p", "config: {", "project.not-yaml"),
        ("name: p", f"config: {'[' * 5_000}", "project.too-deep"),
    ],
)
def test_mistakes_in_the_files(tmp_path: Path, settings: str, stack: str, code: str) -> None:
    with sentences.raises(code, "Pulumi.s.yaml" if stack else "Pulumi.yaml") as raised:
        project.load(Stack(write(tmp_path, settings, stack), "s"))
    assert raised.value.exit_code == 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | texts.text()
    # A whole number is an int to us: the wire knows only one kind of number.
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda f: not f.is_integer()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
objects = st.dictionaries(texts.text(), json_values.filter(lambda v: v is not None), max_size=5)


@given(objects)
def test_values_survive_the_wire(values: dict[str, Any]) -> None:
    assert wire.to_json(wire.to_struct(values)) == values


@given(objects, json_values)
def test_secrets_are_replaced_wherever_they_are(values: dict[str, Any], hidden: Any) -> None:
    marked = {**values, "s": [{"in": wire.secret(hidden)}]}
    assert wire.has_secret(marked)
    assert wire.plain(marked) == {**values, "s": [{"in": hidden}]}
    assert wire.redacted(marked) == {**values, "s": [{"in": "[secret]"}]}
