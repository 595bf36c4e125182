"""Tests of accounting on the controller: a database without a password, and the cluster's registration."""

from __future__ import annotations

import dataclasses
import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from node.accounting import enrolment
from node.bootstrap import accounting, daemons, own_mariadb
from node.bootstrap.context import Context
from node.bootstrap.services import Service
from node.design.folders import Folders
from node.design.model import SlurmSettings
from node.design.sites import LocalSite
from node.system import accounts
from tests.support.recorded import Recorder, machine

ON = SlurmSettings(accounting=True)
ASKED = "sacctmgr --noheader --parsable2 show cluster format=cluster"
ADDED = "sacctmgr --immediate add cluster t"


def controller(
    folder: Path, monkeypatch: pytest.MonkeyPatch, isolation: str = "vm", **site: Any
) -> tuple[Context, Recorder]:
    """A controller whose waits are recorded and end at once."""
    context, run = machine(folder, "controller", "controller", slurm=ON)
    design = dataclasses.replace(context.settings.design, isolation=isolation)
    if isolation != "vm":
        site = {"cloud": LocalSite(), **site}
    place = dataclasses.replace(context.settings.site, **site)
    context.settings = dataclasses.replace(context.settings, design=design, site=place)
    context.folders = Folders(context.settings)
    for pure in (context.folders.etc, context.folders.run, context.folders.log, context.folders.lib):
        context.path(pure).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(accounts, "ids", lambda _user: (os.geteuid(), os.getegid()))
    monkeypatch.setattr(daemons, "check_port", lambda _context, port: run("see", str(port)))
    monkeypatch.setattr(daemons, "wait", lambda what, *_rest: run("wait", what))
    # test_enrolment.py has what follows.
    monkeypatch.setattr(enrolment, "enrol", lambda _context, *, is_new: run("enrol", str(is_new)))
    return context, run


def started(context: Context) -> list[Service]:
    found: list[Service] = context.services.started  # type: ignore[attr-defined]
    return found


def test_on_a_cloud_slurmdbd_is_there_before_slurmctld(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, run = controller(tmp_path, monkeypatch)
    clusters = ["", "t"]
    run.answer("sacctmgr --noheader", lambda *_argv: clusters.pop(0))
    assert accounting.start(context) == "slurmdbd"
    assert run.calls == [
        "systemctl restart mariadb",
        "mariadb",
        "see 6819",
        "wait slurmdbd",
        ASKED,
        ADDED,
        "enrol True",
    ]
    sql = run.options[1]["stdin"]
    assert "IDENTIFIED VIA unix_socket" in sql
    assert "IF NOT EXISTS 'slurm'@'localhost'" in sql
    conf = context.path(context.folders.etc) / "slurmdbd.conf"
    assert stat.S_IMODE(conf.stat().st_mode) == 0o600
    assert "StoragePass" not in conf.read_text()
    assert "AuthInfo" not in conf.read_text(), "munge's socket is where everybody looks"
    (service,) = started(context)
    assert (service.name, service.user, service.argv) == ("slurmdbd", "slurm", ("/usr/sbin/slurmdbd", "-D"))

    run.calls.clear()
    accounting.start(context)
    assert run.calls[0] == "systemctl start mariadb", "nothing changed: nothing is interrupted"
    assert not run.having("add")


def test_where_machines_are_processes_the_database_is_the_clusters_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    context, run = controller(tmp_path, monkeypatch, "process", user="root")
    run.answer("sacctmgr --noheader", lambda *_argv: "t")
    data, etc = (context.path(path) for path in (context.folders.database, context.folders.etc))
    accounting.start(context)
    assert run.calls == [
        f"/usr/bin/mariadb-install-db --defaults-file={etc}/mariadb.cnf --datadir={data}.new "
        "--user=root --skip-test-db --skip-name-resolve --auth-root-authentication-method=socket "
        "--debug-no-sync",
        # What it has not waited for is on the disk before the folder has its name.
        f"find {data}.new -exec sync {{}} +",
        "wait MariaDB",
        "see 6819",
        "wait slurmdbd",
        ASKED,
        "enrol False",
    ]
    database, dbd = started(context)
    assert [(s.name, s.user) for s in (database, dbd)] == [("mariadb", None), ("slurmdbd", None)]
    assert dbd.env["MYSQL_UNIX_PORT"] == str(own_mariadb.database_socket(context.folders))
    lines = (etc / "mariadb.cnf").read_text().splitlines()
    assert "skip-networking" in lines
    assert f"datadir={data}" in lines
    assert "user=root" in lines, "MariaDB runs as root where it is told so"
    assert "'slurm'@'localhost' IDENTIFIED BY ''" in (etc / "mariadb.sql").read_text()
    assert f"init-file={etc}/mariadb.sql" in lines
    socket_line = f"AuthInfo=socket={context.folders.munge_socket}"
    assert socket_line in (etc / "slurmdbd.conf").read_text()

    assert data.is_dir()
    (data / "history").touch()
    run.calls.clear()
    accounting.start(context)
    assert run.calls[0] == "wait MariaDB", "a database that is there is not made again"
    assert (data / "history").exists()


def test_a_database_that_was_not_finished_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, run = controller(tmp_path, monkeypatch, "process", user="root")
    run.answer("sacctmgr --noheader", lambda *_argv: "t")
    half = context.path(context.folders.database).with_name("database.new")
    half.mkdir()
    (half / "ibdata1").touch()
    accounting.start(context)
    assert run.calls[0].startswith("/usr/bin/mariadb-install-db ")
    assert list(context.path(context.folders.database).iterdir()) == []


def test_mariadb_is_there_once_it_greets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MariaDB's socket exists early, but MariaDB answers only when it has run its statements."""
    path = tmp_path / "m.sock"
    assert not own_mariadb._mariadb_answers(path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert not own_mariadb._mariadb_answers(path), "left by one that was killed"
        server.listen()
        monkeypatch.setattr(own_mariadb, "ANSWER_SECONDS", 0.05)
        assert not own_mariadb._mariadb_answers(path), "not ready yet"
        server.accept()[0].close()
        monkeypatch.setattr(own_mariadb, "ANSWER_SECONDS", 60.0)
        greeter = threading.Thread(target=lambda: server.accept()[0].send(b"\x4a"))
        greeter.start()
        assert own_mariadb._mariadb_answers(path)
        greeter.join()


def test_on_process_machines_any_name_of_the_owner_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database's user is another's name there: its socket lies where only the owner can reach it."""
    cloud = LocalSite(loopback_only=True)
    context, run = controller(tmp_path, monkeypatch, "process", user="DOM\\a'; DROP b", cloud=cloud)
    asked: list[str] = []

    def database(_context: Context, statements: str) -> dict[str, str]:
        asked.append(statements)
        return {}

    monkeypatch.setattr(accounting, "start_mariadb", database)
    run.answer("sacctmgr --noheader", "t")
    accounting.start(context)
    assert "'slurm'@'localhost' IDENTIFIED BY ''" in asked[0]
    assert "DROP" not in asked[0]
    lines = (context.path(context.folders.etc) / "slurmdbd.conf").read_text().splitlines()
    assert {"StorageUser=slurm", "CommunicationParameters=NoInAddrAny"} <= set(lines)
    assert 'SlurmUser="DOM\\\\a\'; DROP b"' in lines
