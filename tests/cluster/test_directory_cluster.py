"""Users of a real directory (slapd) on machines that boot: login, job, bill, and a server that is away."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.network import GATEWAY, Network
from operations.local import container_images
from tests.support import slapd
from tests.support.checkout import Checkout, until
from tests.support.containers import cluster_image
from tests.support.mishaps import quick_benchmark

# tests/node/test_boot_vm_directory.py shows the parts by default.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.wide, slapd.needs_slapd]

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        local: {{isolation: container}}
        login: {{count: 1}}
        access:
          directory:
            domain: example
            uris: [{uri}]
            search_base: {base}
            bind_dn: {reader}
            password_secret: {secret}
            access_filter: (!(uid=eve))
            ca_certificate: ca.pem
        partitions:
          - {{name: debug, instance_type: local.small, nodes: {{max: 2}}, default: true}}
        slurm: {{suspend_time: 5, accounting: true}}
      slurm-stacks:benchmark: {{enabled: false}}
"""


class People:
    """A cluster, its directory, and an SSH client with the key that the directory has of its users."""

    def __init__(self, cluster: Checkout, server: slapd.Slapd, folder: Path) -> None:
        self.cluster, self.server, self._folder = cluster, server, folder
        (folder / "config").write_text(cluster.cluster("ssh-config", check=True).stdout)

    def ssh(self, user: str, line: str, password: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a line as a user, who shows the key, or the password if there is one."""
        env = dict(os.environ)
        options = ["-F", str(self._folder / "config"), "-l", user, "-o", "IdentitiesOnly=yes"]
        # The relay to the machine does not end with sshd's side, which refuses an account only after its key.
        options += ["-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=2"]
        if password is None:
            options += ["-i", str(self._folder / "key"), "-o", "PasswordAuthentication=no"]
        else:
            ask = self._folder / "ask"
            ask.write_text('#!/bin/sh\necho "$SECRET"\n')
            ask.chmod(0o755)
            env |= {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force", "SECRET": password}
            options += ["-o", "PubkeyAuthentication=no", "-o", "NumberOfPasswordPrompts=1"]
            options += ["-o", "BatchMode=no", "-o", "PreferredAuthentications=password"]
        words = ["ssh", *options, f"slurm-stacks-{self.cluster.stack}", line]
        return subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    folder = tmp_path_factory.mktemp("directory")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
    key = (folder / "key.pub").read_text().strip()
    entries = (
        slapd.user("ada", 5001, key) + slapd.user("eve", 5002, key) + slapd.group("research", 5100, "ada")
    )
    secret = folder / "password"
    secret.write_text(f"{slapd.PASSWORD}\n")
    secret.chmod(0o600)
    stack = STACK.format(uri=f"ldaps://{GATEWAY}", base=slapd.BASE, reader=slapd.READER, secret=secret)
    cluster_image(stack.replace("ca_certificate: ca.pem", ""))
    checkout = Checkout(tmp_path_factory.mktemp("people") / "a checkout", stack)
    quick_benchmark(checkout)
    (Path(checkout.env["XDG_CACHE_HOME"]) / "slurm-stacks" / "images").symlink_to(
        container_images.image_folder()
    )
    server: slapd.Slapd | None = None
    try:
        # The machines' network exists before the first of them, with the server in it.
        (checkout.run_directory / "cloud").mkdir(parents=True, exist_ok=True)
        network = Network(checkout.run_directory / "cloud", environment={})
        server = slapd.Slapd(folder, GATEWAY, entries, enter=network.enter())
        (checkout.folder / "ca.pem").write_text(server.authority.pem)
        server.start()
        checkout.cluster("up", check=True)
        yield People(checkout, server, folder)
    finally:
        if server is not None:
            server.stop()
        left = checkout.close()
    assert left == []


def test_a_user_logs_in_and_runs_a_job_that_is_billed(people: People) -> None:
    line = "exec 2>&1; id -u; id -Gn; stat -c '%U %a' ~; hostname"
    said = ["5001", "ada research", "ada 700"]
    done = people.ssh("ada", line)
    assert done.stdout.splitlines() == [*said, "login-0"], done
    done = people.ssh("ada", f"srun sh -c '{line.replace(chr(39), chr(34))}' && ssh debug-0 id -u")
    assert done.stdout.splitlines()[-5:] == [*said, "debug-0", "5001"], done
    # The login has enrolled the user in the default account.
    record = ("sacct", "-a", "-n", "-X", "-P", "--format=User,Account")
    until(lambda: "ada|users" in people.cluster.execute(*record), 60, "the record")


def test_a_password_lets_in_its_user_and_the_filter_keeps_others_out(people: People) -> None:
    done = people.ssh("ada", "id -un", "ada's password")
    assert done.stdout == "ada\n", done
    assert people.ssh("ada", "true", "another").returncode == 255
    assert people.ssh("eve", "true", "eve's password").returncode == 255
    assert people.ssh("eve", "true").returncode == 255


def test_nobody_but_root_reads_the_password(people: People) -> None:
    run = people.cluster.run_directory
    for place in ("bucket", "apps", "shared"):
        found = subprocess.run(
            ["grep", "-rlF", slapd.PASSWORD, str(run / place)], capture_output=True, text=True, check=False
        )
        assert found.stdout == "", place
    done = people.ssh("ada", "cat /etc/sssd/sssd.conf /etc/slurm-stacks/directory-password")
    assert (done.stdout, done.returncode) == ("", 1)


def test_while_the_server_is_away_who_is_known_logs_in_and_jobs_wait_with_the_cause(people: People) -> None:
    people.ssh("ada", "id -un", "ada's password")
    people.server.stop()
    with contextlib.ExitStack() as stack:
        stack.callback(people.server.start)
        assert people.ssh("ada", "id -un", "ada's password").stdout == "ada\n"
        number = people.ssh("ada", "sbatch --parsable --wrap 'id -u'").stdout.strip()

        def comment() -> bool:
            shown = people.cluster.execute("scontrol", "show", "job", number)
            return "the directory example does not answer" in shown

        until(comment, 240, "the cause in the job's comment")

        def named() -> bool:
            steps = json.loads(people.cluster.cluster("status", "--json", check=True).stdout)["steps"]
            return any(s["name"] == "directory" and s["error"] is not None for s in steps)

        until(named, 120, "the directory in the status")
    until(lambda: people.ssh("ada", f"cat slurm-{number}.out").stdout == "5001\n", 400, "the job")
