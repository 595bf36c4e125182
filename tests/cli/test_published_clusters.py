"""`--outputs`: a cluster of anybody's program, from a file, standard input or a stack; and what is forged."""

from __future__ import annotations

import copy
import io
import json
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli import main as cli
from cli import outputs
from cli.providers import login_machine
from cli.providers.aws.provider import AwsProvider
from cli.providers.gcp.provider import GcpProvider
from cli.providers.local.provider import LocalProvider
from infra.config import load_file
from infra.design import design
from infra.errors import EXIT_REFUSED, EXIT_USAGE, NotUpError
from infra.instance_types.catalog import catalog
from infra.outputs import publish
from infra.program import locations
from infra.program.stack import Stack
from infra.ssh import Target
from operations.access import Inside, StackUp
from operations.gcp.cloud import GcpCloud
from operations.local.run_directory import RunDirectory
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.stack_values import STACKS

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEEE"
INSTANCE = "i-0123456789abcdef0"
RUN = "0123456789"
"""The id of a local cluster."""


def there(machine: str, address: str = "198.51.100.7", keys: list[str] | None = None) -> publish.Deployed:
    return publish.Deployed(
        id="c0ffee",
        login_address=address,
        login_machine=machine,
        login_ssh="ssh …",
        controller_address="10.0.0.5",
        scheduler_version="23.11.4",
        host_keys=[KEY] if keys is None else keys,
        shared="/home",
    )


def built(file: Path, deployed: publish.Deployed) -> dict[str, Any]:
    return publish.build(design(load_file(file), catalog()), deployed)


def aws(**access: Any) -> dict[str, Any]:
    made = built(ROOT / "Pulumi.aws-cpu.yaml", there(INSTANCE))
    made["login"]["access"] |= access
    return made


def gcp() -> dict[str, Any]:
    return built(STACKS / "Pulumi.gcp-gpu.yaml", there("slurm8-controller"))


def local() -> dict[str, Any]:
    return built(ROOT / "Pulumi.local.yaml", there(RUN, "127.0.0.1", []))


def up_of(option: str) -> StackUp:
    published = outputs.read(option)
    return StackUp(Stack(ROOT, published.cluster.name), published.cluster.provider, published=published)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes outputs into a file of the folder in which the command runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def write(value: Any, name: str = "outputs.json") -> str:
        (tmp_path / name).write_text(value if isinstance(value, str) else json.dumps(value))
        return name

    return write


# --- where outputs come from -----------------------------------------------------------------------------


def test_a_file_with_all_outputs_or_with_the_cluster_alone(file: Callable[..., str]) -> None:
    program = {"vpc": "vpc-1", "train": aws(), "url": None}
    assert outputs.read(file(program)).cluster == outputs.read(file(aws(), "one.json")).cluster
    assert outputs.read(file({"whole": {"cluster": aws(), "loginSsh": "x"}})).cluster.name == aws()["name"]


def test_one_of_several_clusters_is_chosen_by_its_output(file: Callable[..., str]) -> None:
    program = {"train": aws(), "small": gcp(), "more": [local(), {"cluster": aws()}]}
    name = file(program)
    chosen = {path: outputs.read(f"{name}:{path}").cluster.provider for path in ("train", "small", "more[0]")}
    assert chosen == {"train": "aws", "small": "gcp", "more[0]": "local"}
    assert outputs.read(f"{name}:more[1]").cluster.provider == "aws", "the object that has it"
    with sentences.raises("outputs.several", "outputs.json:train", "outputs.json:more[1].cluster") as caught:
        outputs.read(name)
    assert caught.value.exit_code == EXIT_USAGE
    with sentences.raises("outputs.no-such-cluster", '"trian"', "outputs.json:train"):
        outputs.read(f"{name}:trian")
    with sentences.raises("outputs.no-such-cluster"):
        outputs.read(f"{file(aws(), 'one.json')}:train")


def test_a_name_with_colons_is_a_file_first(file: Callable[..., str]) -> None:
    assert outputs.read(file(gcp(), "a:b.json")).cluster.provider == "gcp"
    assert outputs.read(f"{file({'t': aws()}, 'c:d.json')}:t").cluster.provider == "aws"


def test_standard_input_and_a_shells_pipe(
    file: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = json.dumps({"train": aws(), "small": gcp()}).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert outputs.read("-:small").cluster.provider == "gcp"
    reading, writing = os.pipe()
    os.write(writing, json.dumps(aws()).encode())
    os.close(writing)
    try:
        assert outputs.read(f"/dev/fd/{reading}").cluster.provider == "aws"
    finally:
        os.close(reading)


def test_what_is_no_source_or_holds_no_cluster_is_one_message(
    file: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    cases: list[tuple[str, str]] = [
        ("outputs.source", "nowhere.json"),
        ("outputs.source", "dev"),
        ("outputs.source", "-o/p/dev"),
        ("outputs.source", "\x1b]0;x\x07"),
        ("outputs.source", "x\0y"),
        ("outputs.unreadable", "folder"),
        ("outputs.not-json", file("", "empty")),
        ("outputs.not-json", file("{", "broken")),
        ("outputs.not-json", file("[" * 5000, "deep")),
        ("outputs.no-cluster", file("7", "number")),
        ("outputs.no-cluster", file({}, "none")),
        ("outputs.no-cluster", file({"vpc": "vpc-1", "\x1b[2J": 1}, "others")),
        ("outputs.no-cluster", file({"train": "[secret]", "vpc": "vpc-1"}, "secret")),
        ("outputs.contract", file({**aws(), "apiVersion": "slurm-stacks/v2"}, "newer")),
        ("outputs.contract", file({**aws(), "name": 7, "partitions": "\x9b2J"}, "mistyped")),
    ]
    for code, option in cases:
        with sentences.raises(code) as caught:
            outputs.read(option)
        assert caught.value.exit_code == EXIT_USAGE
        assert all(line.isprintable() for line in str(caught.value).splitlines()), option
    monkeypatch.setattr(outputs, "MOST_BYTES", 100)
    with sentences.raises("outputs.unreadable", compared=False):
        outputs.read(file(aws(), "large"))


@pytest.fixture
def pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a `pulumi` on PATH that writes its arguments down.

    tests/engine/test_engine_component.py reads a stack with the real one.
    """
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def write(script: str) -> Path:
        tool, given = tmp_path / "bin" / "pulumi", tmp_path / "given"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{given}\n{script}\n')
        tool.chmod(0o755)
        return given

    return write


def test_a_stack_is_read_by_the_pulumi_cli(file: Callable[..., str], pulumi: Callable[[str], Path]) -> None:
    given = pulumi(f"cat {file({'train': aws(), 'small': gcp()})}")
    assert outputs.read("acme/platform/dev:small").cluster.provider == "gcp"
    assert given.read_text().split() == [
        "stack", "output", "--json", "--non-interactive", "--stack", "acme/platform/dev",
    ]  # fmt: skip
    pulumi("printf 'error: no stack named \\033[2Jdev\\n' >&2; exit 255")
    with sentences.raises("outputs.pulumi-failed", "acme/platform/dev", "no stack named \\x1b[2Jdev"):
        outputs.read("acme/platform/dev")


def test_without_the_pulumi_cli_the_message_says_how_a_file_is_made(
    file: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with sentences.raises(
        "outputs.no-pulumi", "pulumi stack output --json --stack acme/platform/dev"
    ) as caught:
        outputs.read("acme/platform/dev")
    assert caught.value.exit_code == EXIT_REFUSED


# --- what may be in them ---------------------------------------------------------------------------------

FORGED = (
    "-oProxyCommand=touch /tmp/x",
    "x;touch y",
    "$(touch y)",
    "a b",
    "x\ny",
    "\x1b[2J",
    "",
    "../..",
    "%h",
)


@pytest.mark.parametrize(
    ("made", "path"),
    [
        (made, path)
        for made, more in (
            (aws, ("region", "login.access.user")),
            (gcp, ("region", "zone", "project")),
            (local, ()),
        )
        for path in ("name", "stack", "login.address", "login.access.mode", "login.access.machine", *more)
    ],
)
def test_a_forged_value_runs_nothing(
    file: Callable[..., str], made: Callable[[], dict[str, Any]], path: str
) -> None:
    assert outputs.read(file(made()))
    for value in FORGED:
        forged = copy.deepcopy(made())
        part: Any = forged
        *sections, key = path.split(".")
        for section in sections:
            part = part[section]
        part[key] = value
        with sentences.raises("outputs.value", f"  {path}: ", compared=False) as caught:
            outputs.read(file(forged))
        assert caught.value.exit_code == EXIT_REFUSED
        assert all(line.isprintable() for line in str(caught.value).splitlines())


def test_a_forged_value_is_told_with_its_path_and_with_what_is_allowed(file: Callable[..., str]) -> None:
    forged = aws(machine="-oProxyCommand=id", mode="iap", user=None)
    forged["login"]["host_keys"] = ["ssh-ed25519 AAAA\n* ssh-rsa AAAAx", "-"]
    with sentences.raises(
        "outputs.value", "login.access.mode", "login.access.user: null", "login.host_keys[1]"
    ):
        outputs.read(file(forged))
    forged["login"]["host_keys"] = []
    with sentences.raises("outputs.value", "login.host_keys: []", compared=False):
        outputs.read(file(forged))


def test_a_cluster_that_cannot_be_reached_so_is_refused(file: Callable[..., str]) -> None:
    older = aws()
    del older["login"]["access"]
    with sentences.raises("outputs.no-access"):
        outputs.read(file(older))
    nobody = publish.Deployed(id="1", scheduler_version="AWS Batch")
    with sentences.raises("outputs.batch"):
        outputs.read(file(built(ROOT / "Pulumi.aws-batch.yaml", nobody)))


# --- how the machine is reached --------------------------------------------------------------------------


def target(option: str) -> Target:
    up = up_of(option)
    return (AwsProvider() if up.provider == "aws" else GcpProvider()).ssh(up)


def test_ssh_to_an_address_asks_no_cloud(file: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    option = file(aws(mode="ssh"))
    assert target(option) == Target("198.51.100.7", "admin", (KEY,))
    words = AwsProvider().access(up_of(option), ["squeue", "--me"], tty=False).argv
    assert (words[0], words[-3:]) == ("ssh", ["--", "198.51.100.7", "squeue --me"])
    (known,) = [Path(word.split("=", 1)[1].strip('"')) for word in words if "-oUserKnownHosts" in word]
    assert known.read_text() == f"slurm-stacks {KEY}\n"
    assert stat.S_IMODE(known.parent.stat().st_mode) == 0o700
    assert not (ROOT / ".slurm-stacks" / aws()["name"]).exists(), "no stack of this checkout"


def test_session_manager_takes_the_instance_with_a_key_pair_or_without(file: Callable[..., str]) -> None:
    region = aws()["region"]
    found = target(file(aws(mode="ssm", key=None)))
    assert found.host == INSTANCE
    assert shlex.split(str(found.proxy_command))[1:] == [
        "-I", f"{ROOT}/operations", "operations.aws", "proxy", "--region", region, "--instance", "%h",
        "--user", "%r", "--port", "%p",
    ]  # fmt: skip
    found = target(file(aws(mode="ssm", key="pair")))
    assert shlex.split(str(found.proxy_command))[:6] == [
        "aws", "ssm", "start-session", "--region", region, "--target",
    ]  # fmt: skip


def test_identity_aware_proxy_takes_the_instances_name_and_the_callers_own_user(
    file: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GcpCloud, "user", lambda *_: "ann_example_org")
    found = target(file(gcp()))
    assert (found.host, found.user, found.host_keys) == ("slurm8-controller", "ann_example_org", (KEY,))
    line = str(found.proxy_command)
    assert f"--zone {gcp()['zone']} --instance %h" in line
    assert f"--project {gcp()['project']}" in line


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run directory like that of a local cluster that another program has brought up."""
    monkeypatch.setattr(locations, "run_root", lambda: tmp_path / "runs")
    run_directory = RunDirectory(tmp_path / "runs" / RUN)
    run_directory.tool.parent.mkdir(parents=True)
    run_directory.cloud.mkdir()
    for folder in (run_directory.path.parent, run_directory.path):
        folder.chmod(0o700)
    head = {"state": "pending", "tags": {"role": "controller"}, "process": None}
    (run_directory.cloud / "machines.json").write_text(json.dumps({"machines": [head]}))
    run_directory.tool.write_text(f"#!{sys.executable}\nimport sys\nprint(*sys.argv[1:])\n")
    run_directory.tool.chmod(0o755)
    return run_directory


def test_a_local_cluster_is_found_by_its_folder(file: Callable[..., str], run: RunDirectory) -> None:
    up = up_of(file(local()))
    assert login_machine.tool(LocalProvider(), up, "status") == "status\n"
    files = LocalProvider().files_here(up)
    assert files is not None
    assert not isinstance(files, Inside)
    assert files("x") == run.shared / "x"
    with sentences.raises("tool.no-json"):
        login_machine.parsed("status")
    with sentences.raises("ssh.no-server"):
        LocalProvider().ssh(up)


def test_a_local_cluster_that_is_not_here_is_one_message(
    file: Callable[..., str], run: RunDirectory, tmp_path: Path
) -> None:
    other = local()
    other["login"]["access"]["machine"] = "fedcba9876"
    for call in (
        LocalProvider().status,
        lambda up: LocalProvider().logs(up, None, lines=1, follow=False),
    ):
        with sentences.raises("cluster.not-up", "no ", "fedcba9876", kind=NotUpError):
            call(up_of(file(other)))
    (run.cloud / "machines.json").write_text('{"machines": []}')
    with sentences.raises("controller.not-running", "pulumi up --replace"):
        login_machine.tool(LocalProvider(), up_of(file(local())), "status")
    (tmp_path / "runs" / "fedcba9876").symlink_to(run.path)
    with sentences.raises("folder.unsafe", compared=False):
        login_machine.tool(LocalProvider(), up_of(file(other)), "status")


# --- the commands ----------------------------------------------------------------------------------------


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setenv("SLURM_STACKS_PROJECT", str(ROOT))
    monkeypatch.setattr(sys, "argv", ["cluster", *words])
    try:
        cli.main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    return 0


def test_commands_take_outputs_in_the_place_of_a_stack(
    file: Callable[..., str],
    run: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("SLURM_STACKS_STACK", "no such/stack")
    option = file({"train": local(), "small": aws(mode="ssh")})
    run.tool.write_text(f"#!/bin/sh\necho '{json.dumps({'jobs': [], 'asked': 1})}'\n")
    assert command(monkeypatch, "status", "--json", "--outputs", f"{option}:train") == 0
    assert json.loads(capfd.readouterr().out)["asked"] == 1
    assert command(monkeypatch, "logs", "--outputs", f"{option}:train") == 0
    (tmp_path / "data").write_text("x")
    run.shared.mkdir()
    assert command(monkeypatch, "cp", "--outputs", f"{option}:train", "data", ":there") == 0
    assert (run.shared / "there").read_text() == "x"
    assert command(monkeypatch, "ssh-config", "--outputs", f"{option}:small") == 0
    assert f"Host slurm-stacks-{aws()['name']}\n  HostName 198.51.100.7" in capfd.readouterr().out
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execvpe", lambda _name, argv, _env: started.append(argv))
    assert command(monkeypatch, "exec", f"--outputs={option}:train", "--", "squeue", "--me") == 0
    assert command(monkeypatch, "ssh", "--outputs", f"{option}:small", "uptime") == 0
    assert started[0][-2:] == ["squeue", "--me"]
    assert started[1][-1] == "sh -c uptime"
    assert command(monkeypatch, "status", "--stack", "local", "--outputs", option) == EXIT_USAGE
    assert "[outputs.with-stack]" in capfd.readouterr().err
    assert command(monkeypatch, "status", "--outputs", "nowhere.json") == EXIT_USAGE
    assert "[outputs.source]" in capfd.readouterr().err


def test_a_status_in_another_form_is_one_message(file: Callable[..., str], run: RunDirectory) -> None:
    up = up_of(file({"a": local()}, "o.json") + ":a")
    partition = {"name": "p", "machine": None, "min": 0, "max": 1, "up": 0, "state": "UP"}
    plain = {"partitions": [partition], "nodes": [], "jobs": []}
    lists = [
        {"name": f"r{n}", "start": 1, "end": 2, "nodes": f"a{n}x[0-9999]", "flags": [], "users": ""}
        for n in range(30)
    ]
    answers: list[dict[str, Any]] = [{"jobs": []}, plain | {"nodes": "none"}, plain | {"reservations": lists}]
    for answer in answers:
        run.tool.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
        with sentences.raises("status.other-form", "./cluster status --outputs o.json:a --json"):
            LocalProvider().show_status(up, LocalProvider().status(up))


def test_messages_name_the_outputs_and_no_stack(
    file: Callable[..., str], run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.tool.write_text("#!/bin/sh\nprintf 'slurmctld \\033[2Jis away\\n' >&2; exit 1\n")
    up = up_of(file({"a b": local()}, "o.json") + ":a b")
    with sentences.raises("cluster.no-status", "slurmctld \\x1b[2Jis away", "--outputs 'o.json:a b'"):
        LocalProvider().status(up)
    run.tool.write_text("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(login_machine, "TOOL_SECONDS", 0.2)
    with sentences.raises("cluster.no-answer", f"cluster {local()['name']}"):
        login_machine.tool(LocalProvider(), up, "environments")


SHELL = """
import os, sys
sys.path.insert(0, {root!r})
from cli.providers.login_machine import read_terminal
from infra.errors import UserError
{before}
sys.stdin.buffer.read()
try:
    read_terminal("-:train")
except UserError as error:
    sys.exit(error.code)
print(os.isatty(0), os.read(0, 3))
"""


def test_a_shell_reads_the_terminal_where_standard_input_was_the_outputs() -> None:
    with_terminal = "import pty, termios, fcntl\n" + (
        "main, side = pty.openpty(); fcntl.ioctl(side, termios.TIOCSCTTY, 0); os.write(main, b'ls\\n')"
    )
    done = [
        subprocess.run(
            [sys.executable, "-c", SHELL.format(root=str(ROOT), before=before)],
            input="{}",
            capture_output=True,
            text=True,
            timeout=60,
            start_new_session=True,
            check=False,
        )
        for before in (with_terminal, "")
    ]
    assert (done[0].stdout, done[0].returncode) == ("True b'ls\\n'\n", 0), done[0].stderr
    assert (done[1].stderr.strip(), done[1].returncode) == ("outputs.stdin-taken", 1)


def test_no_terminal_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> int:
        raise OSError("there is none")

    monkeypatch.setattr(os, "open", none)
    with sentences.raises("outputs.stdin-taken", "--outputs -:train"):
        login_machine.read_terminal("-:train")
    login_machine.read_terminal(str(ROOT / "Pulumi.yaml"))
