"""A state that cannot be saved: nothing is begun without a record. And the owner of a cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cli.engine import lock
from infra.program import folders, locations
from tests.support import sentences
from tests.support.tiny_project import Tiny, make


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    return make(tmp_path, monkeypatch)


def fill(tiny: Tiny) -> Path:
    """Fill the disk, so that it has no room for the next state."""
    folder = folders.make_state_dir(tiny.stack)
    draft = folder / "state.new"
    draft.unlink(missing_ok=True)
    draft.symlink_to("/dev/full")
    return draft


def test_without_room_for_the_state_no_command_is_run(tiny: Tiny) -> None:
    tiny.write("command('a')")
    draft = fill(tiny)
    with sentences.raises("system.no-space", "/state.json") as raised:
        tiny.up()
    assert raised.value.exit_code == 1
    assert tiny.words == []
    draft.unlink(missing_ok=True)
    tiny.up()
    assert tiny.words == ["a+"]
    tiny.destroy()


def test_a_disk_that_fills_while_a_command_runs_loses_nothing(tiny: Tiny) -> None:
    state = tiny.state_file.with_suffix(".new")
    tiny.write(f"""
        # After its start, which is written down, too: with its pid.
        noted = "until grep -q \\"^ *$$,\\" '{tiny.state_file}'; do sleep 0.05; done"
        a = command('a', create=f"{{say('a+')}}; {{noted}}; ln -sf /dev/full '{state}'")
        command('b', opts={{'depends_on': [a]}})
    """)
    with sentences.raises("system.no-space", "/state.json"):
        tiny.up()
    assert "a+" in tiny.words
    assert not tiny.made["a"]["whole"], "what is not known to be done is done again"
    state.unlink(missing_ok=True)
    tiny.write("command('a')\ncommand('b')").up()
    assert set(tiny.words) == {"a+", "b+"}
    tiny.destroy()
    assert set(tiny.words) == {"a-", "b-"}


def test_a_destroy_comes_to_its_end_without_room(tiny: Tiny) -> None:
    tiny.write("command('a')\ncommand('b')").up()
    assert set(tiny.words) == {"a+", "b+"}
    fill(tiny)
    tiny.destroy()
    assert set(tiny.words) == {"a-", "b-"}
    assert not tiny.state_file.parent.exists()
    assert not locations.run_dir(tiny.stack).exists()


def test_a_destroy_that_fails_without_room_is_done_again(tiny: Tiny) -> None:
    gate = tiny.log.with_name("gate")
    tiny.write(f"command('a', delete=f\"test -e '{gate}' && {{say('a-')}}\")\ncommand('b')").up()
    fill(tiny)
    with sentences.raises("runner.resources-failed"):
        tiny.destroy()
    assert set(tiny.made) == {"a", "b"}, "the state of before"
    gate.touch()
    fill(tiny)
    tiny.destroy()
    assert "a-" in tiny.words
    assert not tiny.state_file.exists()


def test_the_lock_needs_no_room(tiny: Tiny) -> None:
    folder = folders.make_state_dir(tiny.stack)
    (folder / "lock").symlink_to("/dev/full")
    with lock.locked(tiny.stack, "down"):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_state_that_may_not_be_read_is_said(tiny: Tiny) -> None:
    tiny.write("command('a')").up()
    tiny.state_file.chmod(0)
    with sentences.raises("system.denied", "mode 0"):
        tiny.destroy()
    tiny.state_file.chmod(0o600)
    assert json.loads(tiny.state_file.read_text())
    tiny.destroy()
