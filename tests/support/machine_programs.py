"""What a namespace machine has in place of what only an Ubuntu machine on EC2 has: run as a file, on it.

`systemctl`, `apt-get`, `dpkg-query` and `mount.nfs4`, by the name that it is called by. Services are started
for real, as their units say; packages are this host's, and what it lacks is noted. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STATE = Path("/run/stand-ins")
ENVIRONMENT = STATE / "environment"
"""`NAME=value` lines that every unit gets."""
INSTALLED = STATE / "installed"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STOP_SECONDS = 30.0
UNITS = (Path("/etc/systemd/system"), Path("/run/systemd/system"))


def systemctl(*words: str) -> int:
    options = [word for word in words if word.startswith("-")]
    verb, *units = [word for word in words if not word.startswith("-")]
    if verb in ("daemon-reload", "enable"):
        return 0
    for unit in units:
        if verb in ("stop", "restart"):
            _stop(unit)
        if verb in ("start", "restart"):
            _start(unit, wait="--no-block" not in options)
        if verb == "show":
            assert "--property=MainPID" in options
            print(_pid(unit))
    return 0


def _start(unit: str, *, wait: bool) -> None:
    file = next((folder / unit for folder in UNITS if (folder / unit).exists()), None)
    if file is None or str(file.resolve()) == "/dev/null":
        raise SystemExit(f"Failed to start {unit}: Unit {unit} is masked or not found.")
    lines = [line.partition("=")[::2] for line in file.read_text().splitlines() if "=" in line]
    said = dict(lines)
    argv = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(said["ExecStart"])]
    environment = {"PATH": PATH, "LANG": "C.UTF-8"}
    for text in ENVIRONMENT.read_text().splitlines():
        environment |= [text.partition("=")[::2]]
    for name, value in lines:
        if name == "Environment":
            environment |= dict([shlex.split(value)[0].replace("%%", "%").partition("=")[::2]])
    output = said.get("StandardOutput", f"append:/var/log/{unit}.log").removeprefix("append:")
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    with Path(output).open("ab") as log:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd="/",
            start_new_session=True, **_become(said.get("User")),
        )  # fmt: skip
    draft = STATE / f".{unit}.{child.pid}"
    draft.write_text(f"{child.pid}\n")
    draft.replace(STATE / f"{unit}.pid")  # whoever asks meanwhile never finds half of it
    if wait and said.get("Type") == "oneshot":
        child.wait()


def _become(user: str | None) -> dict[str, Any]:
    """What `Popen` takes to run a program as somebody."""
    if user is None:
        return {}
    entry = pwd.getpwnam(user)
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}


def _stop(unit: str) -> None:
    """As systemd: SIGTERM, and SIGKILL for what does not listen."""
    pid, began = _pid(unit), time.monotonic()
    while pid and _pid(unit):
        late = time.monotonic() - began > STOP_SECONDS
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.1)
    (STATE / f"{unit}.pid").unlink(missing_ok=True)


def _pid(unit: str) -> int:
    """0 where it does not run."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        pid = int((STATE / f"{unit}.pid").read_text())
        os.kill(pid, 0)
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            return pid
    return 0


def apt_get(*words: str) -> int:
    """What is asked for is noted as installed; boto3 is found where the tests have it."""
    verb, *names = [word for word in words if not word.startswith("-")]
    if verb == "install":
        with INSTALLED.open("a") as known:
            known.write("".join(f"{name}\n" for name in names))
        if "python3-boto3" in names:
            places = Path("/usr/local/lib").glob("python3.*/dist-packages")
            for place in places:
                place.joinpath("stand-in.pth").write_text((STATE / "site-packages").read_text())
    return 0


def dpkg_query(*words: str) -> int:
    names = [word for word in words if not word.startswith("-")]
    known = set(INSTALLED.read_text().split()) if INSTALLED.exists() else set()
    query = ["/usr/bin/dpkg-query", *[word for word in words if word.startswith("-")], *names]
    there = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    print(there + "".join(f"installed {name}\n" for name in names if name in known), end="")
    return 0


def mount_nfs4(origin: str, target: str, *_options: str) -> int:
    """A file system of the machine's own, with the server's name."""
    return subprocess.run(["/bin/mount", "-i", "-t", "tmpfs", origin, target], check=False).returncode


def main() -> int:
    name = Path(sys.argv[0]).name
    STATE.mkdir(exist_ok=True)
    with (STATE / "calls").open("a") as calls:
        calls.write(f"{shlex.join([name, *sys.argv[1:]])}\n")
    programs: dict[str, Callable[..., int]] = {
        "systemctl": systemctl, "apt-get": apt_get, "dpkg-query": dpkg_query, "mount.nfs4": mount_nfs4,
    }  # fmt: skip
    return programs[name](*sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
