"""Accounting on the controller: a database without a password, and a cluster that slurmdbd knows."""

from __future__ import annotations

import dataclasses
import stat
from pathlib import Path

import pytest

from infra.node.bootstrap.vm import accounting
from infra.node.model import SlurmSettings
from tests.support.recorded import machine


def test_slurmdbd_is_there_before_slurmctld(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, run = machine(tmp_path, "controller", "controller", slurm=SlurmSettings(accounting=True))
    (tmp_path / "root" / "etc" / "slurm").mkdir()
    monkeypatch.setattr(accounting.files.accounts, "own", lambda _path, _user: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(accounting.daemons, "see_port", lambda _context, port: run("see", str(port)))  # type: ignore[attr-defined]
    monkeypatch.setattr(accounting.daemons, "wait", lambda what, *_rest: run("wait", what))  # type: ignore[attr-defined]
    clusters = ["", "t"]
    run.answer("sacctmgr --noheader", lambda *_argv: clusters.pop(0))
    assert accounting.start(context) == "slurmdbd"
    assert run.calls == [
        "systemctl restart mariadb",
        "mariadb",
        "see 6819",
        "wait slurmdbd",
        "sacctmgr --noheader --parsable2 show cluster format=cluster",
        "sacctmgr --immediate add cluster t",
    ]
    sql = run.options[1]["stdin"]
    assert "IDENTIFIED VIA unix_socket" in sql
    assert "IF NOT EXISTS 'slurm'@'localhost'" in sql
    conf = tmp_path / "root" / "etc" / "slurm" / "slurmdbd.conf"
    assert stat.S_IMODE(conf.stat().st_mode) == 0o600
    assert "StoragePass" not in conf.read_text()
    (service,) = context.services.started  # type: ignore[attr-defined]
    assert (service.name, service.user, service.argv) == ("slurmdbd", "slurm", ("/usr/sbin/slurmdbd", "-D"))

    run.calls.clear()
    accounting.start(context)
    assert run.calls[0] == "systemctl start mariadb", "nothing changed: nothing is interrupted"
    assert not run.having("add")


def test_a_name_that_sql_could_read_otherwise_is_refused(tmp_path: Path) -> None:
    context, run = machine(tmp_path, "controller", "controller")
    site = dataclasses.replace(context.settings.site, user="a'; DROP")
    context.settings = dataclasses.replace(context.settings, site=site)
    with pytest.raises(ValueError, match="no name for a database's user"):
        accounting.start(context)
    assert run.calls == []
