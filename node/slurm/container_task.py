"""Starts one task's container, as the user: what Slurm calls instead of the task of `srun --container`.

The bundle's own configuration is written for one user and one machine. This program makes another from it:
the task runs as the user with the user's own numbers, sees the cluster's shared folders at their paths, the
node's devices and network, and has the job's environment. Then it becomes crun.

It imports little: a task's start waits for it.

Slurm's traps (docs/internals/slurm_traps.md): containers-of-22-05.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import shutil
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":  # Slurm starts this file, and Python then does not know the folder of the package.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from node.slurm.hostlist import expand

MOUNTS = "CONTAINER_MOUNTS"
"""The variable with further mounts: `SOURCE[:TARGET[:ro]]`, separated by commas."""
OF_THE_JOB = ("SLURM_", "HOME", "USER", "LOGNAME", "PWD")
"""Beginnings of variables whose value in the image means nothing: the last value counts."""
OF_THE_TASK = ("SLURM_", "SLURMD_NODENAME", "PMI", "CUDA_", "NVIDIA_VISIBLE_DEVICES", "ROCR_", "NEURON_RT_")
"""Beginnings of the variables that Slurm sets for each task."""
HIDDEN = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "OLDPWD", MOUNTS})
"""Variables of the node that mean nothing in a container."""
SYSTEM = ("/proc", "/sys", "/dev")
"""Folders of the node that every container has, instead of what the bundle mounts there. There is no PID
namespace, so that CUDA's and MPI's processes on a node reach each other as they do outside of containers, and
without one a user may not mount another /proc."""
NAMES = ("/etc/resolv.conf", "/etc/hosts")
"""Files of the node by which a container finds other machines."""
OF_THE_BUNDLE = ("hostname", "domainname")
DRIVER = "/usr/local/nvidia"
"""Where NVIDIA's images look for the driver's libraries and programs."""
LIBRARIES = re.compile(
    r"^\s*(lib(?:cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[\w-]+)\.so[\w.]*) .*=> (/\S+)$", re.MULTILINE
)
PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")


class RefusedError(Exception):
    """The container cannot be started. The text says why, and what to do."""


class Account(NamedTuple):
    """The user who runs the container, as the node knows it."""

    uid: int
    gid: int
    name: str
    home: str

    def passwd_line(self) -> str:
        return f"{self.name}:x:{self.uid}:{self.gid}::{self.home}:/bin/sh\n"

    def variables(self) -> list[str]:
        return [f"HOME={self.home}", f"USER={self.name}", f"LOGNAME={self.name}"]


def account() -> Account:
    """Return this process's user. One without a name has its number as the name."""
    uid, gid = os.getuid(), os.getgid()
    try:
        known = pwd.getpwuid(uid)
    except KeyError:
        return Account(uid, gid, str(uid), os.environ.get("HOME", "/"))
    return Account(uid, gid, known.pw_name, known.pw_dir)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bundle", required=True, type=Path)
    parser.add_argument("--state", required=True, type=Path)
    parser.add_argument("--mount", action="append", default=[])
    parser.add_argument("name")
    given = parser.parse_args(arguments)
    bundle = given.state / f"{given.name}.bundle"
    try:
        own_folder(given.state)
        config = json.loads((given.bundle / "config.json").read_text())
        root = Path(given.bundle, config["root"]["path"])
        bundle.mkdir(mode=0o700, exist_ok=True)
        gpus = driver(_libraries()) if Path("/dev/nvidiactl").exists() else []
        adapt(config, root, bundle, given.mount, gpus)
        (bundle / "config.json").write_text(json.dumps(config))
    except RefusedError as error:
        shutil.rmtree(bundle, ignore_errors=True)
        sys.exit(f"slurm-stacks: {error}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"slurm-stacks: the container's bundle cannot be used: {error!r}")
    options = ("--rootless=true", "--cgroup-manager=disabled", f"--root={given.state}")
    # Slurm's own cgroup of the step holds all of its processes. A new keyring is refused in some containers.
    run = ("crun", *options, "run", "--no-new-keyring", f"--bundle={bundle}", given.name)
    os.execvp(run[0], run)


def own_folder(folder: Path) -> None:
    """Make the user's folder for the state of containers.

    Raises:
        RefusedError: Somebody else has made it.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise RefusedError(f"{folder} is not yours alone: ask an administrator to remove it")


def adapt(
    config: dict[str, Any],
    root: Path,
    bundle: Path,
    shared: Iterable[str],
    gpus: Sequence[dict[str, Any]],
) -> None:
    """Change a bundle's configuration in place, so that it works for this user on this node.

    Args:
        root: The bundle's root file system.
        made: A folder for files that the container sees.
        shared: The cluster's folders. If the image has no place for one, it is left out, and a line says so.
        gpus: Mounts with the driver of the node's GPUs.

    Raises:
        RefusedError: A mount that the user asks for is not understood, or has no source or no place.
    """
    process, user = config["process"], account()
    # The last value of a name is the job's.
    job = dict(pair.partition("=")[::2] for pair in process.get("env", []))
    mounts = [bind(path) for path in (*SYSTEM, "/tmp")]
    mounts += [bind(path, read_only=True) for path in NAMES if _has_names(root, path)]
    mounts += [bind(str(file), target, read_only=True) for file, target in _accounts(root, bundle, user)]
    user_mounts = []
    for path in shared:
        if _place(root, path, Path(path).is_dir()):
            mounts.append(bind(path))
        else:
            sys.stderr.write(f"slurm-stacks: {path} is left out: the image has no such folder\n")
    if gpus and _place(root, DRIVER, folder=True):
        mounts += gpus
    for mount in requested(job.get(MOUNTS, "")):
        source, target = Path(mount["source"]), mount["destination"]
        if not source.exists():
            raise RefusedError(f"{MOUNTS}: {source} is not on this node")
        if not _place(root, target, source.is_dir()):
            raise RefusedError(
                f"{MOUNTS}: the image has no {target}, and you may not make it in {root}: make it there first"
            )
        user_mounts.append(mount)
    taken = {mount["destination"] for mount in (*mounts, *user_mounts)}
    kept = [mount for mount in config.get("mounts", []) if _keeps(mount["destination"], taken)]
    # A mount hides what is below it, so the user's come last.
    config["mounts"] = [*mounts, *kept, *user_mounts]

    process.update(
        user={"uid": user.uid, "gid": user.gid},
        env=environment([*process.get("env", []), *user.variables()], os.environ),
        cwd=_folder(process.get("cwd", "/"), job.get("PWD", "/"), config["mounts"], root),
        terminal=False,
        noNewPrivileges=True,
    )
    if gpus:
        process["env"] = _with_driver(process["env"])
    for key in ("capabilities", "rlimits", "apparmorProfile", "selinuxLabel"):
        process.pop(key, None)
    for key in OF_THE_BUNDLE:
        config.pop(key, None)
    hooks = config.setdefault("hooks", {})
    # crun does this after the container's end. What a killed crun leaves is small, and goes with the machine.
    hooks["poststop"] = [*hooks.get("poststop", []), {"path": "/bin/rm", "args": ["rm", "-rf", str(bundle)]}]
    config["root"]["path"] = str(root)
    config["linux"] = {
        "namespaces": [{"type": "user"}, {"type": "mount"}],
        "uidMappings": [{"containerID": user.uid, "hostID": user.uid, "size": 1}],
        "gidMappings": [{"containerID": user.gid, "hostID": user.gid, "size": 1}],
    }


def environment(config: Iterable[str], process: Mapping[str, str]) -> list[str]:
    """Return the environment of a task in its container.

    Of two values the image's counts, except for the variables that are the job's or the user's.

    Args:
        config: The image's variables, to which Slurm has appended the job's.
        process: This process's own. From Slurm 23.02 on, what differs between the tasks of a step is there.
    """
    variables: dict[str, str] = {}
    for pair in config:
        name, _, value = pair.partition("=")
        if name not in variables or name.startswith(OF_THE_JOB):
            variables[name] = value
    variables |= {name: value for name, value in process.items() if name.startswith(OF_THE_TASK)}
    variables |= rank(variables)
    return [f"{name}={value}" for name, value in variables.items() if name not in HIDDEN]


def rank(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the task's place in a step with one task on each node; empty for other steps.

    Slurm 22.05 starts no other steps in containers, and tells none its place: what is there in a batch job is
    the place of the batch script.
    """
    nodes = expand(variables.get("SLURM_STEP_NODELIST", ""))
    node = variables.get("SLURMD_NODENAME")
    if node not in nodes or variables.get("SLURM_STEP_NUM_TASKS") != str(len(nodes)):
        return {}
    number = str(nodes.index(node))
    return {"SLURM_PROCID": number, "SLURM_NODEID": number, "SLURM_LOCALID": "0"}


def requested(text: str) -> list[dict[str, Any]]:
    """Return the mounts of `CONTAINER_MOUNTS`.

    Raises:
        RefusedError: A part is not understood.
    """
    binds = []
    for part in filter(None, text.split(",")):
        source, _, rest = part.partition(":")
        target, _, mode = rest.partition(":")
        target = target or source
        if not (source.startswith("/") and target.startswith("/") and mode in ("", "ro", "rw")):
            raise RefusedError(f"{MOUNTS}: {part!r} is not /SOURCE[:/TARGET[:ro]]")
        binds.append(bind(source, os.path.normpath(target), read_only=mode == "ro"))
    return binds


def bind(source: str, target: str | None = None, *, read_only: bool = False) -> dict[str, Any]:
    """Return a bind mount with all that is mounted below the source."""
    options = ["rbind", "rslave", "ro" if read_only else "rw"]
    return {"destination": target or source, "type": "bind", "source": source, "options": options}


def driver(libraries: str) -> list[dict[str, Any]]:
    """Return the mounts that give a container the node's NVIDIA driver.

    Args:
        libraries: What `ldconfig -p` prints.
    """
    files = {name: path for name, path in LIBRARIES.findall(libraries) if Path(path).exists()}
    binds = [
        {
            "destination": DRIVER,
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "nodev", "mode=755"],
        }
    ]
    binds += [bind(path, f"{DRIVER}/lib64/{name}", read_only=True) for name, path in sorted(files.items())]
    programs = [name for name in PROGRAMS if Path("/usr/bin", name).exists()]
    binds += [bind(f"/usr/bin/{name}", f"{DRIVER}/bin/{name}", read_only=True) for name in programs]
    return binds


def _libraries() -> str:
    # Imported late, because only tasks with GPUs need it.
    from node.system import subprocesses

    return subprocesses.run(["/sbin/ldconfig", "-p"], os.environ).output


def _with_driver(variables: Iterable[str]) -> list[str]:
    values = dict(pair.partition("=")[::2] for pair in variables)
    for name, folder in (("LD_LIBRARY_PATH", f"{DRIVER}/lib64"), ("PATH", f"{DRIVER}/bin")):
        if folder not in values.get(name, "").split(":"):
            values[name] = f"{values[name]}:{folder}" if values.get(name) else folder
    return [f"{name}={value}" for name, value in values.items()]


def _accounts(root: Path, bundle: Path, user: Account) -> list[tuple[Path, str]]:
    """Return the image's lists of users and groups with this user and group, as files of the node."""
    binds = []
    for file, line in (("passwd", user.passwd_line()), ("group", f"{user.name}:x:{user.gid}:\n")):
        theirs = root / "etc" / file
        if not theirs.is_file():
            continue
        # The first line of a name or a number counts: an image's own user of that name or number is hidden.
        (bundle / file).write_text(line + theirs.read_text(errors="replace"))
        binds.append((bundle / file, f"/etc/{file}"))
    return binds


def _place(root: Path, target: str, folder: bool) -> bool:
    """Return whether a container has a place for a mount. A place that is missing is made if the user may."""
    place = root / target.lstrip("/")
    if os.path.lexists(place):
        return True
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if folder:
            place.mkdir(exist_ok=True)
        else:
            place.touch()
    except OSError:
        return False
    return True


def _has_names(root: Path, path: str) -> bool:
    """Return whether a container has a place for one of NAMES. Images of many builders lack these files."""
    place = root / path[1:]
    if os.path.lexists(place):
        return place.exists()  # a link may lead nowhere
    return Path(path).exists() and _place(root, path, folder=False)


def _keeps(destination: str, taken: Container[str]) -> bool:
    """Return whether a mount of the bundle stays: nothing else, nor a folder of the node, is there."""
    below = any(destination == path or destination.startswith(f"{path}/") for path in SYSTEM)
    return destination not in taken and not below


def _folder(image: str, job_folder: str, mounts: Iterable[dict[str, Any]], root: Path) -> str:
    """Return the folder in which the task starts: the image's, or the job's if the image names none."""
    if image != "/":
        return image
    mounted = any(
        job_folder == m["destination"] or job_folder.startswith(f"{m['destination']}/") for m in mounts
    )
    return job_folder if mounted or (root / job_folder.lstrip("/")).is_dir() else image


if __name__ == "__main__":
    main(sys.argv[1:])
