"""The configuration of a task's container is made from the bundle's and the node's (`container_task`)."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from node.design.containers import Containers
from node.design.storage import Mount
from node.slurm import conf, container_conf, container_task
from tests.support.doubles import design, settings

UNPACKED: dict[str, Any] = {
    "ociVersion": "1.0.0",
    "process": {
        "terminal": True,
        "user": {"uid": 0, "gid": 0},
        "args": ["hostname"],
        "env": ["PATH=/opt/bin", "HOME=/root", "PATH=/usr/bin", "HOME=/home/ana", "PWD=/home/ana", "A=b=c"],
        "cwd": "/",
        "capabilities": {"effective": ["CAP_KILL"]},
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
    },
    "root": {"path": "rootfs"},
    "hostname": "umoci-default",
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm"},
        {"destination": "/tmp/slurm", "type": "bind", "source": "/var/spool/slurmd/oci"},
    ],
    "linux": {"uidMappings": [{"containerID": 0, "hostID": 9, "size": 1}], "maskedPaths": ["/proc/kcore"]},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "bundle" / "rootfs"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (tmp_path / "made").mkdir()
    return root


def adapted(root: Path, shared: tuple[str, ...] = (), **job: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(json.dumps(UNPACKED))
    config["process"]["env"] += [f"{name}={value}" for name, value in job.items()]
    container_task.adapt(config, root, root.parent.parent / "made", shared, [])
    return config


def mounted(config: dict[str, Any]) -> dict[str, str]:
    return {mount["destination"]: mount["source"] for mount in config["mounts"]}


def test_the_task_runs_as_its_user_and_has_no_rights_beyond(root: Path) -> None:
    config = adapted(root)
    process, linux = config["process"], config["linux"]
    uid, gid = os.getuid(), os.getgid()
    assert process["user"] == {"uid": uid, "gid": gid}
    assert linux == {
        "namespaces": [{"type": "user"}, {"type": "mount"}],
        "uidMappings": [{"containerID": uid, "hostID": uid, "size": 1}],
        "gidMappings": [{"containerID": gid, "hostID": gid, "size": 1}],
    }
    assert process["noNewPrivileges"]
    assert not {"capabilities", "rlimits"} & process.keys()
    assert "hostname" not in config
    known = pwd.getpwuid(uid)
    assert {f"HOME={known.pw_dir}", f"USER={known.pw_name}", "PATH=/opt/bin"} <= set(process["env"])
    made = root.parent.parent / "made"
    first, *others = (made / "passwd").read_text().splitlines()
    assert first.split(":")[2:4] == [str(uid), str(gid)]
    assert others == ["root:x:0:0::/root:/bin/sh"]
    assert mounted(config)["/etc/passwd"] == str(made / "passwd")
    assert "/etc/group" not in mounted(config), "the image has none"
    assert config["hooks"]["poststop"][-1]["args"] == ["rm", "-rf", str(made)]


def test_the_nodes_folders_take_the_place_of_the_bundles(root: Path) -> None:
    found = mounted(adapted(root))
    assert {path: found[path] for path in ("/proc", "/sys", "/dev", "/tmp")} == {
        "/proc": "/proc", "/sys": "/sys", "/dev": "/dev", "/tmp": "/tmp",
    }  # fmt: skip
    assert "/dev/shm" not in found
    assert found["/tmp/slurm"] == "/var/spool/slurmd/oci", "a batch script lies there"


def test_machines_have_their_names_also_where_the_image_has_no_such_files(root: Path) -> None:
    assert mounted(adapted(root))["/etc/hosts"] == "/etc/hosts"
    assert (root / "etc" / "hosts").is_file()
    (root / "etc" / "hosts").unlink()
    (root / "etc" / "hosts").symlink_to("nowhere")
    assert "/etc/hosts" not in mounted(adapted(root))


def test_a_shared_folder_needs_a_place(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "fsx"
    shared.mkdir()
    config = adapted(root, (str(shared),))
    assert mounted(config)[str(shared)] == str(shared)
    assert (root / str(shared)[1:]).is_dir()
    (root / "etc" / "data").write_text("no folder")
    assert "/etc/data/more" not in mounted(adapted(root, ("/etc/data/more",)))
    assert "/etc/data/more is left out" in capsys.readouterr().err


def test_the_working_folder_is_the_images_or_the_jobs(root: Path) -> None:
    assert adapted(root)["process"]["cwd"] == "/", "the container has no /home/ana"
    (root / "home" / "ana").mkdir(parents=True)
    assert adapted(root)["process"]["cwd"] == "/home/ana"
    assert adapted(root, PWD="/tmp/x")["process"]["cwd"] == "/tmp/x"
    config: dict[str, Any] = json.loads(json.dumps(UNPACKED))
    config["process"]["cwd"] = "/workspace"
    container_task.adapt(config, root, root.parent.parent / "made", (), [])
    assert config["process"]["cwd"] == "/workspace"


def test_the_images_variables_stay_and_the_users_are_the_jobs() -> None:
    image = UNPACKED["process"]["env"]
    variables = {"SLURM_PROCID": "3", "INVOCATION_ID": "z"}
    assert container_task.environment([*image, "SLURM_CONF=/x"], variables) == [
        "PATH=/opt/bin", "HOME=/home/ana", "PWD=/home/ana", "A=b=c", "SLURM_PROCID=3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("node", "tasks", "rank"),
    [("n-1", "2", "1"), ("n-0", "2", "0"), ("n-1", "4", None), ("other", "2", None)],
)
def test_a_rank_that_slurm_does_not_tell_is_the_nodes(node: str, tasks: str, rank: str | None) -> None:
    step = {"SLURM_STEP_NODELIST": "n-[0-1]", "SLURM_STEP_NUM_TASKS": tasks, "SLURMD_NODENAME": node}
    found = container_task.environment(
        ["SLURM_PROCID=7", *(f"{name}={value}" for name, value in step.items())], {}
    )
    assert f"SLURM_PROCID={rank or 7}" in found, "in a batch job the batch script's is there"
    assert container_task.rank(step).get("SLURM_PROCID") == rank
    assert not container_task.rank({})


def test_mounts_that_are_asked_for(root: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    config = adapted(root, CONTAINER_MOUNTS=f"{data}:/data:ro,{data}")
    *_, one, two = config["mounts"]
    assert (one["destination"], one["options"]) == ("/data", ["rbind", "rslave", "ro"])
    assert (two["destination"], two["source"]) == (str(data), str(data))
    assert "CONTAINER_MOUNTS" not in " ".join(config["process"]["env"])
    for text, words in (
        (f"{tmp_path}/none", "is not on this node"),
        (f"{data}:/etc/passwd/x", "you may not make it"),
        (f"{data}:x", "is not /SOURCE"),
    ):
        with pytest.raises(container_task.RefusedError, match=words):
            adapted(root, CONTAINER_MOUNTS=text)


def test_the_driver_is_what_the_node_has(tmp_path: Path) -> None:
    names = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libc.so.6")
    for name in names:
        (tmp_path / name).touch()
    listed = "".join(
        f"\t{name} (libc6,x86-64) => {tmp_path / name}\n" for name in (*names, "libnvcuvid.so.1")
    )
    first, *others = container_task.driver(listed)
    assert (first["destination"], first["type"]) == ("/usr/local/nvidia", "tmpfs")
    libraries = {m["destination"] for m in others if "/lib64/" in m["destination"]}
    assert libraries == {f"/usr/local/nvidia/lib64/{name}" for name in names[:3]}, "one is not there"


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    container_task.own_folder(tmp_path / "mine")
    container_task.own_folder(tmp_path / "mine")
    (tmp_path / "mine").chmod(0o777)
    with pytest.raises(container_task.RefusedError, match="not yours alone"):
        container_task.own_folder(tmp_path / "mine")


def test_slurm_gets_the_file_only_where_it_is_asked_for() -> None:
    mounts = (Mount("/home", "nfs"), Mount("/fsx", "fsx_lustre"), Mount("/x", "nfs", roles=("controller",)))
    made = settings(Path("/"), design(isolation="container", mounts=mounts, containers=Containers("oci")))
    text = conf.render(made, (22, 5))["oci.conf"]
    assert text.endswith(container_conf.oci_conf(made))
    line = next(line for line in text.splitlines() if line.startswith("RunTimeRun="))
    assert " --mount=/home --mount=/fsx %n" in line
    assert all(line.count('"') == 2 and "#" not in line for line in text.splitlines()[1:])
    assert "oci.conf" not in conf.render(settings(Path("/"), design(isolation="container")), (22, 5))
