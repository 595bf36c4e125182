"""Commands that people paste run nothing from the folder in which they stand."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import hints
from cli.providers.local import sshd
from infra.aws import access as aws_access
from infra.clouds.commands import ClusterRef
from infra.gcp import access as gcp_access
from infra.program import launcher
from tests.support.checkout import ROOT
from tests.support.traps import Traps

PLACE = ClusterRef("c", "europe-west4", "europe-west4-a", "acme-ml")
USELESS = {
    "state": "XDG_STATE_HOME=.", "plugins": "PULUMI_HOME=.pulumi", "code": f"{launcher.VARIABLE}=.",
    "nothing": "X=y",
}  # fmt: skip
"""Variables that would lead to the working folder."""


@pytest.fixture
def traps(tmp_path: Path) -> Traps:
    folder = tmp_path / "somebody's download"
    folder.mkdir()
    made = Traps.set(folder)
    for link in (
        "slurm-stacks/code",
        "slurm-stacks/checkout",
        ".pulumi/plugins/resource-slurm-stacks-v0.1.0",
    ):
        (folder / link).parent.mkdir(parents=True, exist_ok=True)
        (folder / link).symlink_to(folder)
    return made


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose checkout is known here, and who has no credentials."""
    home, bin_folder = tmp_path / "home", tmp_path / "bin"
    state = home / ".local/state/slurm-stacks"
    state.mkdir(parents=True)
    (state / launcher.CHECKOUT).symlink_to(ROOT)
    bin_folder.mkdir()
    for name in ("aws", "gcloud", "nsenter"):
        (bin_folder / name).write_text("#!/bin/sh\nexit 5\n")
        (bin_folder / name).chmod(0o755)
    return {
        "HOME": str(home),
        # An empty entry here is as common as it is unwanted: `export PYTHONPATH=$PYTHONPATH:/lib`.
        "PYTHONPATH": ":/lib",
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_GCE_CHECK": "true",
    }


def filled_in(proxy: str | None) -> str:
    """Return a ProxyCommand as OpenSSH runs it."""
    assert proxy is not None
    for letter, value in {"%h": "i-0123456789abcdef0", "%p": "22", "%r": "admin"}.items():
        proxy = proxy.replace(letter, value)
    return f"exec {proxy.replace('%%', '%')}"


def run(line: str, traps: Traps, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=traps.folder, env=env, capture_output=True, text=True, check=False, timeout=120,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize("variable", USELESS)
def test_a_pasted_line_finds_the_code_but_not_here(variable: str, traps: Traps, env: dict[str, str]) -> None:
    name, _, value = USELESS[variable].partition("=")
    done = run(launcher.pasted("operations.aws proxy --help"), traps, env | {name: value})
    assert (done.returncode, traps.ran) == (0, []), done.stderr
    assert "--instance" in done.stdout


def test_without_the_code_it_says_what_to_do(traps: Traps, env: dict[str, str]) -> None:
    (Path(env["HOME"]) / ".local/state/slurm-stacks" / launcher.CHECKOUT).unlink()
    for variable in USELESS.values():
        name, _, value = variable.partition("=")
        done = run(launcher.pasted("operations.aws proxy"), traps, env | {name: value})
        assert (done.returncode, traps.ran) == (3, [])
        assert f"set {launcher.VARIABLE} to the absolute path of a checkout" in done.stderr


def proxies() -> Iterator[tuple[str, str | None]]:
    """Yield every ProxyCommand that people get, in `loginSsh` or from `ssh-config`."""
    for name, run in {"pasted": launcher.pasted, "here": launcher.here(ROOT)}.items():
        yield f"ssm-{name}", aws_access.ssh_proxy("eu-west-1", "ssm", None, run)
        yield f"iap-{name}", gcp_access.proxy(PLACE, "iap", run)
    yield "ssm-key", aws_access.ssh_proxy("eu-west-1", "ssm", "k")
    yield "ssm-output", aws_access.ssh_proxy("eu-west-1", "ssm", None)
    yield "iap-output", gcp_access.proxy(PLACE, "iap")


@pytest.mark.parametrize(("name", "proxy"), list(proxies()), ids=[name for name, _ in proxies()])
def test_a_proxy_command_runs_no_file_of_the_folder(
    name: str, proxy: str | None, traps: Traps, env: dict[str, str]
) -> None:
    done = run(filled_in(proxy), traps, env)
    assert traps.ran == []
    # Without a key and credentials it comes as far as that, by our code or by the cloud's program.
    assert done.returncode in (1, 3, 5), done.stderr
    assert "is not on this machine" not in done.stderr


def test_ssh_itself_runs_none_either(traps: Traps, env: dict[str, str]) -> None:
    proxy = aws_access.ssh_proxy("eu-west-1", "ssm", None)
    options = ["-F", "none", "-o", "BatchMode=yes", "-o", f"ProxyCommand={proxy}"]
    run(shlex.join(["ssh", *options, "admin@i-0123456789abcdef0", "true"]), traps, env)
    assert traps.ran == []


def test_the_stanza_of_a_local_cluster_runs_none(traps: Traps, env: dict[str, str], tmp_path: Path) -> None:
    done = run(filled_in(sshd.proxy_command(tmp_path / "run", tmp_path / "key")), traps, env)
    assert traps.ran == []
    assert str(tmp_path / "run") in done.stderr, "it came as far as to look for the cluster"


@pytest.mark.parametrize("arguments", ["--version", "status --stack nope", "list"])
def test_the_command_runs_none_and_names_itself_so_that_it_can_be_pasted(
    arguments: str, traps: Traps, env: dict[str, str]
) -> None:
    done = run(f"{shlex.quote(str(ROOT / 'cluster'))} {arguments}", traps, env)
    assert traps.ran == []
    told = done.stdout + done.stderr
    assert "./cluster" not in told.replace(f"{ROOT}/cluster", "")
    if arguments == "list":
        assert f"`{ROOT}/cluster list --clouds`" in told


def test_the_search_for_a_python_imports_nothing_here(
    traps: Traps, env: dict[str, str], tmp_path: Path
) -> None:
    """A checkout without an environment looks for a Python that has tomllib."""
    checkout = tmp_path / "checkout"
    (checkout / "cli").mkdir(parents=True)
    (checkout / "cluster").write_text((ROOT / "cluster").read_text())
    (checkout / "cluster").chmod(0o755)
    (checkout / "cli" / "fetch_uv.py").write_text("import sys\nsys.exit('no uv')\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").symlink_to(sys.executable)
    done = run(str(checkout / "cluster"), traps, env | {"PATH": f"{tools}:/usr/bin:/bin"})
    assert traps.ran == []
    assert "no uv" in done.stderr or "uv could not" in done.stderr


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("run `./cluster up --stack x`", "run `/a\\ b/cluster up --stack x`"),
        ("./cluster down; ./cluster list", "/p down; /p list"),
        ("of ./cluster need none", "of /p need none"),
        ("see x/./cluster up, a./cluster up, ../cluster up", None),
        ("./cluster", None),
        ("./cluster-x", None),
    ],
)
def test_messages_name_the_command_from_where_the_user_stands(
    text: str, named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hints.from_here(text) == text, "in the checkout"
    place = "/a b/cluster" if named and "a\\ b" in named else "/p"
    monkeypatch.setenv(hints.COMMAND, place)
    expected = text if named is None else named.replace("/a\\ b/cluster", "'/a b/cluster'")
    assert hints.from_here(text) == expected


CLOSING = {"input": "<&-", "output": ">&-", "messages": "2>&-", "all": "<&- >&- 2>&-"}


@pytest.mark.parametrize("closed", CLOSING)
@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["status", "--stack", "nope"], 2)])
def test_a_closed_stream_is_no_error(arguments: list[str], code: int, closed: str, tmp_path: Path) -> None:
    """Nor is the next file that is opened taken for the terminal."""
    out, err = (tmp_path / "out").open("w"), (tmp_path / "err").open("w")
    with out, err:
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "$0" "$@" {CLOSING[closed]}', str(ROOT / "cluster"), *arguments],
            stdout=out, stderr=err, check=False, timeout=120,
        )  # fmt: skip
    told, said = (tmp_path / "out").read_text(), (tmp_path / "err").read_text()
    assert done.returncode == code
    assert "Traceback" not in said
    assert bool(told) == (code == 0 and closed not in ("output", "all"))
    assert bool(said) == (code != 0 and closed not in ("messages", "all"))


@pytest.mark.parametrize("arguments", [["--json"], []])
def test_an_output_that_takes_no_more_is_named(arguments: list[str]) -> None:
    """Also where it is longer than what is written at once."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [str(ROOT / "cluster"), "plan", "--stack", "local", *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=120,
        )  # fmt: skip
    assert done.returncode == 1
    assert "no space left for /dev/full: " in done.stderr
    assert "Traceback" not in done.stderr
