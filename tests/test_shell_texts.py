"""Every text that a shell runs, written or rendered, is read by shells and shellcheck."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from email import message_from_string
from pathlib import Path, PurePath

import pytest
import yaml

from infra.aws import access, bake
from infra.aws.batch import bake as ecs
from infra.aws.batch.environment import user_data
from infra.aws.launch_templates import BOOT_SCRIPT
from infra.clouds.commands import line
from infra.gcp import instance_templates
from node.bootstrap.vm import first_login, images, login_enrolment, users, users_prolog
from operations import login_lines
from operations.aws import __main__
from operations.local import system_packages
from tests.support.aws_mocks import aws_design
from tests.support.batch_stack import batch_design
from tests.support.checkout import CODE, ROOT
from tests.support.gcp_mocks import gcp_design
from workload.script import Job, Training, render, render_program

PLACE = "/home/some place"
AWKWARD = '/home/it\'s $HOME "here"; `id`'
"""A text that the shell would interpret if the quoting were wrong."""


def texts() -> Iterator[tuple[str, str, str]]:
    """Yield name, shell and text."""
    design = aws_design()
    yield "shim", "sh", (ROOT / "cluster").read_text()
    for path in sorted([*ROOT.glob("hooks/**/*.sh"), *ROOT.glob("examples/**/*.sh")]):
        text = path.read_text()
        yield path.name, "bash" if "bash" in text.partition("\n")[0] else "sh", text
    for role, host in (("controller", "controller"), ("login", "login-0"), ("compute", None)):
        yield (
            f"user-data-{role}",
            "sh",
            BOOT_SCRIPT.render(design, "c-bucket-1a2b3c4", role, host),
        )
    baked = replace(design, image=replace(design.image, bake=True))
    for kind in images.kinds(baked):
        steps = yaml.safe_load(bake.document(baked, "c-bucket-1a2b3c4", kind))["phases"][0]["steps"]
        for number, step in enumerate(steps):
            yield f"bake-{kind.name}-{number}", "bash", "\n".join(step["inputs"]["commands"])
    for name, sources in (("stack", {"/fsx": "fs@tcp:/x"}), ("job", {})):
        message = message_from_string(user_data(batch_design(file_system=name), sources))
        yield f"batch-user-data-{name}", "sh", str(message.get_payload(0).get_payload())  # type: ignore[union-attr]
    yield "ecs-image", "bash", ecs.SCRIPT.read_text()
    yield "policy-rc.d", "sh", system_packages.OUR_POLICY
    yield "wait-for-environment", "sh", login_lines.wait_line(PLACE, "0123abcd", 60)
    yield "unpack", "sh", login_lines.unpack_line(PLACE, "0123abcd", "f" * 64)
    yield "submit", "sh", login_lines.submit_line(PLACE, "0123abcd/4567")
    yield "cancel", "sh", login_lines.cancel_line(PLACE, "0123abcd/4567")
    for verb in ("terminate-nodes", "wait"):
        yield f"operation-{verb}", "sh", line(__main__.__package__, verb, design)
    google = gcp_design()
    for role, host in (("controller", "controller"), ("compute", None)):
        yield (
            f"startup-script-{role}",
            "sh",
            instance_templates.BOOT_SCRIPT.render(google, "c-bucket-1a2b3c4", role, host),
        )
    yield (
        "first-login",
        "sh",
        first_login.PROGRAM_TEXT.format(shared="/home", key="id_ed25519", cluster="c", umask=" 0077"),
    )
    prolog = users_prolog.PROLOG_TEXT.format(
        conf="/c", applied="/a", program="/p", log="/l", checks="/usr/bin/true"
    )
    yield "users-prolog", "sh", prolog
    yield "enrol", "sh", login_enrolment.program_text("c", "users", PurePath("/etc/slurm/slurm.conf"))
    yield "user-key", "sh", users.KEY_TEXT.format(key="id_ed25519", cluster="c")
    for mode in ("ssm", "ssh"):
        if proxy := access.ssh_proxy("eu-west-1", mode, "my key"):
            yield f"proxy-{mode}", "sh", proxy.replace("%%", "%")
    yield "sbatch-cpu", "sh", render(Job("debug", 2, PLACE, PLACE), Training())
    yield (
        "sbatch-gpu",
        "sh",
        render(Job("t4", 2, "/apps/py", "/x", gpus_per_node=8, gpu_type="v100"), Training()),
    )
    yield (
        "sbatch-program",
        "sh",
        render_program(
            Job("t4", 2, PLACE, AWKWARD, gpus_per_node=8, tasks_per_node=8),
            ("code/it's.py", "--name", AWKWARD),
        ),
    )
    in_container = render_program(Job("t4", 2, PLACE, PLACE), ("a.py",), container=AWKWARD)
    yield "sbatch-program-container", "sh", in_container


TEXTS = [pytest.param(shell, text, id=name) for name, shell, text in texts()]


def shellcheck() -> str | None:
    return shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))


@pytest.mark.parametrize(("shell", "text"), TEXTS)
def test_the_shell_can_read_it(shell: str, text: str) -> None:
    done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("shell", "text"), TEXTS)
def test_shellcheck_finds_nothing(shell: str, text: str) -> None:
    program = shellcheck()
    assert program is not None, "shellcheck comes with this project's own environment"
    done = subprocess.run(
        # 2016: text in single quotes is for another shell, or for people.
        [program, f"--shell={shell}", "--exclude=SC2016", "-"],
        input=text, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


def test_no_shell_text_in_the_project_is_left_out() -> None:
    """Only these files have texts that begin like a script, and each of them is among the texts above."""
    known = "".join(text for _, _, text in texts())
    lies = {
        path.relative_to(ROOT)
        for folder in CODE
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix in (".py", ".j2", ".sh")
        for line in path.read_text().splitlines()
        if line.lstrip(' "').startswith(("#!/bin/sh", "#!/bin/bash", "#!/usr/bin/env bash"))
    }
    assert {str(path) for path in lies} == {
        "infra/aws/batch/ecs_image.sh",
        "infra/aws/batch/environment.py",
        "infra/clouds/userdata.py",
        "operations/local/environment_paths.py",  # of two lines; a test runs what begins so
        "operations/local/system_packages.py",
        "node/bootstrap/vm/first_login.py",
        "node/bootstrap/vm/login_enrolment.py",
        "node/bootstrap/vm/users_prolog.py",
        "workload/job_head.j2",
    }
    assert known.count("#!/bin/") + known.count("#!/usr/bin/env bash") >= 8


def test_values_that_look_like_shell_stay_values() -> None:
    waiting = login_lines.wait_line(AWKWARD, "0123abcd", 0)
    done = subprocess.run(["sh"], input=waiting, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"{AWKWARD}/envs/0123abcd is not there" in done.stderr
    assert shlex.split(login_lines.submit_line(AWKWARD, "a/b"))[1] == AWKWARD
