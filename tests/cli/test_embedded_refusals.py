"""What is refused without the Pulumi CLI, and who owns a cluster; each message says what to do."""

from __future__ import annotations

import fcntl
import os
import re
import time
from pathlib import Path

import pytest

from cli.engine import lock
from cli.engine.embedded import EmbeddedRunner
from infra.errors import UserError
from infra.program import locations, owner
from infra.program.stack import Stack
from tests.support import sentences
from tests.support.tiny_project import Tiny, make


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    return make(tmp_path, monkeypatch)


def refused(tiny: Tiny) -> str:
    with pytest.raises(UserError) as raised:
        tiny.up()
    assert raised.value.exit_code == 3
    return str(raised.value)


@pytest.mark.parametrize(
    ("program", "named"),
    [
        ("import pulumi_aws as aws; aws.ec2.Vpc('net', cidr_block='10.0.0.0/16')", "net: .*aws:ec2/vpc:Vpc"),
        (
            "import pulumi_aws as aws; aws.Provider('west', region='us-west-2')",
            "west: .*pulumi:providers:aws",
        ),
        ("import pulumi_aws as aws; aws.get_caller_identity()", "a call of aws:index/getCallerIdentity"),
        (
            "import pulumi_command as c; c.remote.Command('far', connection={'host': 'h'}, create='x')",
            "far: .*command:remote:Command",
        ),
        (
            "pulumi.ComponentResource('other:index:Thing', 'thing', {}, remote=True)",
            "thing: .*other:index:Thing",
        ),
        ("import pulumi_aws as aws; aws.ec2.Vpc.get('net', 'vpc-1')", "net: .*aws:ec2/vpc:Vpc that is read"),
        (
            "pulumi.StackReference('organization/tiny/u')",
            "organization/tiny/u: .*StackReference that is read",
        ),
        ("command('a', asset_paths=['x'], dir='x')", "a: assetPaths, dir"),
        ("command('a', add_previous_output_in_env=False)", "a: addPreviousOutputInEnv"),
        ("command('a', environment={'WORD': pulumi.Output.secret('hush')})", "a: environment: a secret"),
        ("command('a', stdin=pulumi.Output.secret('hush'))", "a: stdin: a secret"),
        ("pulumi.export('word', pulumi.Output.secret('hush'))", "the stack's outputs: word: a secret"),
        ("command('a', opts={'import_': 'x'})", "a: importId"),
        ("pulumi.runtime.register_resource_transform(lambda args: None)", "only the Pulumi CLI applies"),
        ("command('a', opts={'transforms': [lambda args: None]})", "a: transforms"),
        (
            "hook = pulumi.ResourceHook('h', lambda args: None)\n"
            "command('a', opts={'hooks': pulumi.ResourceHookBinding(before_create=[hook])})",
            "a: hooks",
        ),
        ("command('a', opts={'protect': True})", "a: protect"),
        ("command('a', opts={'additional_secret_outputs': ['stdout']})", "a: additionalSecretOutputs"),
        ("command('a', opts={'ignore_changes': ['environment']})", "a: ignoreChanges"),
        ("command('a', opts={'replace_on_changes': ['environment']})", "a: replaceOnChanges"),
        ("command('a', opts={'replacement_trigger': 'x'})", "a: replacement_trigger"),
        ("command('a', opts={'retain_on_delete': True})", "a: retainOnDelete"),
        ("command('a', opts={'custom_timeouts': pulumi.CustomTimeouts(create='3s')})", "a: customTimeouts"),
        (
            "a = pulumi.ComponentResource('x:y:Z', 'z')\ncommand('a', opts={'replace_with': [a]})",
            "a: replace_with",
        ),
    ],
)
def test_what_would_be_ignored_without_the_cli_is_refused(tiny: Tiny, program: str, named: str) -> None:
    message = refused(tiny.write(program))
    assert re.match(f".*{named}", message), message
    assert "Pulumi CLI" in message
    assert "hush" not in message
    assert tiny.words == []
    assert not tiny.run_root.exists()
    assert not tiny.state_file.parent.exists()


@pytest.mark.parametrize("value", ["{secure: v1:abc}", "{inner: [{secure: v1:abc}]}"])
def test_encrypted_configuration_is_refused(tiny: Tiny, value: str) -> None:
    message = refused(tiny.write("pass", f"config: {{'tiny:word': {value}}}"))
    assert "tiny:word is encrypted" in message


def test_a_cluster_of_another_backend_is_refused_with_the_command_that_destroys_it(tiny: Tiny) -> None:
    tiny.write("command('a')")
    owner.claim(tiny.stack, "https://api.example.com")
    for operation in (tiny.up, tiny.destroy):
        with sentences.raises(
            "runner.other-owner", "`PULUMI_BACKEND_URL=https://api.example.com pulumi destroy --stack t`"
        ) as raised:
            operation()
        assert raised.value.exit_code == 3
    assert tiny.words == []
    assert owner.read(tiny.stack) == "https://api.example.com"


def test_the_program_under_the_cli_is_refused_a_cluster_of_the_embedded_runner(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///elsewhere")
    tiny.write("command('a')").up()
    with sentences.raises("runner.other-owner", "`./cluster down --stack t`"):
        owner.claim_in_program(tiny.stack)
    tiny.destroy()
    owner.claim_in_program(tiny.stack)
    owner.claim_in_program(tiny.stack)
    assert owner.read(tiny.stack) == "file:///elsewhere"
    with sentences.raises("runner.other-owner", "PULUMI_BACKEND_URL=file:///elsewhere"):
        tiny.up()


def test_the_program_under_the_embedded_runner_claims_nothing_of_its_own(tiny: Tiny) -> None:
    tiny.write("""
        from pathlib import Path
        from infra.program import owner
        from infra.program.stack import Stack
        owner.claim_in_program(Stack(Path.cwd(), pulumi.get_stack()))
        command("a")
    """).up()
    assert owner.read(tiny.stack) == owner.EMBEDDED


def test_the_run_directory_is_its_owners_alone(tiny: Tiny) -> None:
    before = os.umask(0o077)
    try:
        tiny.write("command('a')").up()
    finally:
        os.umask(before)
    path = locations.run_dir(tiny.stack)
    assert path.parent == tiny.run_root
    assert path.stat().st_mode & 0o777 == 0o700
    # Everybody may see the names of run directories, which tell the reserved ports.
    assert path.parent.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("which", "what"),
    [(which, what) for which in ("parent", "own") for what in ("symlink", "file")]
    + [("parent", "other user")],
)
def test_a_run_directory_that_somebody_put_there_is_refused(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, what: str
) -> None:
    path = locations.run_dir(tiny.stack)
    place = path.parent if which == "parent" else path
    if which == "own":
        path.parent.mkdir(mode=0o711)
    target = tmp_path / "target"
    target.mkdir()
    if what == "symlink":
        place.symlink_to(target)
    elif what == "file":
        place.write_text("")
    else:
        place.mkdir()
        mine = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    message = refused(tiny.write("command('a')"))
    assert str(place) in message
    expected = {"symlink": "symbolic link", "file": "not a folder", "other user": "belongs to "}
    assert expected[what] in message
    assert list(target.iterdir()) == []
    assert tiny.words == []


def test_one_operation_at_a_time(tiny: Tiny) -> None:
    tiny.write("""
        wait = f"while ! [ -e '{LOG}.go' ]; do sleep 0.02; done"
        command("a", create=f"touch '{LOG}.started'; {wait}")
    """)
    with tiny.process("up") as running:
        try:
            deadline = time.monotonic() + 60
            while not tiny.log.with_name("log.started").exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            for operation in (tiny.up, tiny.destroy):
                with sentences.raises("state.busy", "`up`", varies=[f"pid {running.pid}"]) as raised:
                    operation()
                assert raised.value.exit_code == 3
            # Another stack of the same checkout has its own cluster.
            Tiny(tiny.path, tiny.run_root, stack_name="u").write("command('u')").up()
        finally:
            # Its command would wait for ever.
            tiny.log.with_name("log.go").touch()
        _, error = running.communicate(timeout=120)
        assert running.returncode == 0, error
    tiny.destroy()


def test_the_lock_survives_its_holder_removing_the_file(tiny: Tiny) -> None:
    with lock.locked(tiny.stack, "up"):
        path = locations.state_dir(tiny.stack) / "lock"
        assert path.read_text() == f"{os.getpid()} up\n"
        with path.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not path.parent.exists()
    with lock.locked(tiny.stack, "up"):
        assert path.exists()


def test_a_socket_in_the_run_directory_is_short_enough_for_munge() -> None:
    assert len(str(locations.run_dir(Stack(Path("/a b" * 60), "s" * 60)) / "munge.socket.2")) < 108


@pytest.mark.parametrize(
    ("value", "expected"),
    [("/x/state", "/x/state/slurm-stacks"), ("relative", "~/.local/state/slurm-stacks")],
)
def test_where_the_state_lies(monkeypatch: pytest.MonkeyPatch, value: str, expected: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", value)
    assert locations.state_root() == Path(expected).expanduser()


def test_a_stack_that_is_not_there_names_those_that_are(tiny: Tiny) -> None:
    tiny.write("pass")
    with sentences.raises("project.missing") as raised:
        EmbeddedRunner(Stack(tiny.path, "nope")).up()
    assert raised.value.exit_code == 2
