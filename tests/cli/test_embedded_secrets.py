"""No secret is saved or shown, and a second run still finds no change."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.errors import UserError
from tests.support.tiny_project import Tiny, make

SECRET = "correct-horse-battery"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    return make(tmp_path, monkeypatch)


PROGRAM = """
    word = pulumi.Output.secret(config.get("word") or "correct-horse-battery")
    printer = Command("printer", create="echo $WORD; echo $WORD >&2",
                      delete=f'echo "[$WORD][$PULUMI_COMMAND_STDOUT]" >> "{LOG}"',
                      environment={"WORD": word, "B": "b"})
    Command("reader", create=f"(cat; echo) >> '{LOG}'", stdin=printer.stdout)
    quiet = Command("quiet", create="printf correct-%s horse-battery", logging="none",
                    opts=ResourceOptions(additional_secret_outputs=["stdout"]))
    pulumi.export("whole", printer.stdout)
    pulumi.export("nested", {"name": "n", "word": word, "list": [quiet.stdout]})
    pulumi.export("open", quiet.stderr)
"""


def everything_written(tiny: Tiny) -> str:
    folders = [tiny.state_file.parent, tiny.run_root]
    return "\n".join(path.read_text() for folder in folders for path in folder.rglob("*") if path.is_file())


def test_secrets_are_nowhere_in_clear(tiny: Tiny) -> None:
    run = tiny.write(PROGRAM).up()
    assert tiny.words == [SECRET], "the command itself gets it"
    assert run.outputs == {
        "whole": "[secret]",
        "nested": {"name": "n", "word": "[secret]", "list": ["[secret]"]},
        "open": "",
    }
    assert SECRET not in everything_written(tiny)
    assert SECRET not in repr(run.events)
    assert run.lines == ["[secret]", "[secret]"]


def test_output_without_the_secret_in_it_is_no_secret(tiny: Tiny) -> None:
    """The real provider does the same. Otherwise a command with a password could output nothing readable."""
    run = tiny.write("""
        word = pulumi.Output.secret("correct-horse-battery")
        a = Command("a", create="echo job 7", environment={"WORD": word})
        pulumi.export("job", a.stdout)
    """).up()
    assert run.outputs == {"job": "job 7"}
    assert SECRET not in everything_written(tiny)


def test_a_second_up_is_no_change_although_the_secrets_are_not_known(tiny: Tiny) -> None:
    tiny.write(PROGRAM).up()
    assert tiny.up().counts == {"unchanged": 4}


def test_a_changed_secret_is_a_change(tiny: Tiny) -> None:
    tiny.write(PROGRAM).up()
    run = tiny.write(PROGRAM, "config: {word: another-word}").up()
    assert run.operations == {"printer": "updated", "reader": "updated", "quiet": "unchanged"}
    assert tiny.words == [SECRET, "another-word"]


def test_the_delete_command_does_without(tiny: Tiny) -> None:
    tiny.write(PROGRAM).up()
    assert tiny.words == [SECRET]
    tiny.destroy()
    assert tiny.words == ["[][]"]


def test_a_command_that_would_need_a_forgotten_secret_says_so(tiny: Tiny) -> None:
    tiny.write(PROGRAM).up()
    assert tiny.words == [SECRET]
    changed = PROGRAM.replace("stdin=printer.stdout", "stdin=printer.stdout, environment={'NEW': '1'}")
    with pytest.raises(UserError, match="reader: it needs a secret that another resource printed"):
        tiny.write(changed).up()
    assert tiny.words == []


def test_a_failure_does_not_show_the_secret(tiny: Tiny) -> None:
    with pytest.raises(UserError) as raised:
        tiny.write("""
            Command("a", create="echo bad $WORD >&2; exit 1",
                    environment={"WORD": pulumi.Output.secret("correct-horse-battery")})
        """).up()
    assert "bad [secret]" in str(raised.value)
    assert SECRET not in str(raised.value) + repr(tiny.events) + everything_written(tiny)


@pytest.mark.parametrize("key", ["delete", "dir", "interpreter"])
def test_what_must_be_kept_must_not_be_secret(tiny: Tiny, key: str) -> None:
    value = "pulumi.Output.secret(['/bin/sh', '-c'] if key == 'interpreter' else 'x')"
    with pytest.raises(UserError, match=f"a secret in `{key}`") as raised:
        tiny.write(f"key = {key!r}; command('a', **{{key: {value}}})").up()
    assert raised.value.exit_code == 3
