"""Tests of Enroot and Pyxis on a machine: the packages by their hashes, and the configuration."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from node.bootstrap import command, machine_steps
from node.bootstrap.vm import apt_repositories, hashed_files, packages, pyxis
from node.design.containers import Containers, Package
from node.design.storage import Mount
from node.slurm import container_conf as texts
from node.system import http_client
from node.system.cloud_api import ServiceError, UnreachableError
from tests.support.recorded import NFS, V100, Recorder, machine

CONTENT = b"a package's file" * 5000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SCRATCH = Mount("/local_scratch", "nvme", roles=("compute",))
HELP = "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n"


class FileServer:
    """An HTTP server with one file: whole, cut short, behind a redirect, missing, or missing at first."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                if self.path == "/moved.deb":
                    self.send_response(302)
                    self.send_header("Location", "/whole.deb")
                    self.end_headers()
                    return
                late = self.path == "/late.deb" and outer.asked.count(self.path) < 3
                if self.path == "/none.deb" or late:
                    self.send_error(503 if late else 404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(CONTENT)))
                self.end_headers()
                self.wfile.write(CONTENT[:100] if self.path == "/short.deb" else CONTENT)

            def log_message(self, *_arguments: Any) -> None:
                """Prints nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr(http_client, "FIRST_PAUSE_SECONDS", 0.01)
    file_server = FileServer()
    yield file_server
    file_server.close()


@pytest.mark.parametrize(("name", "calls"), [("whole", 1), ("moved", 2), ("late", 3)])
def test_a_file_with_the_pinned_hash_is_kept(
    tmp_path: Path, server: FileServer, name: str, calls: int
) -> None:
    context, _ = machine(tmp_path)
    hashed_files.download(context, f"{server.url}/{name}.deb", SHA256, tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == CONTENT
    assert len(server.asked) == calls


@pytest.mark.parametrize(
    ("name", "sha256", "error", "words", "calls"),
    [
        ("whole", "0" * 64, ServiceError, rf"its SHA-256 is {SHA256}, and should be 0+: it is not", 1),
        ("none", SHA256, ServiceError, r"none\.deb: HTTP status 404", 1),
        ("short", SHA256, UnreachableError, rf"short\.deb .*: 100 of {len(CONTENT)} bytes", 2),
    ],
)
def test_any_other_file_is_not_kept(
    tmp_path: Path,
    server: FileServer,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    sha256: str,
    error: type[Exception],
    words: str,
    calls: int,
) -> None:
    monkeypatch.setattr(http_client, "ATTEMPTS", 2)
    context, _ = machine(tmp_path)
    folder = tmp_path / "drafts"
    folder.mkdir()
    with pytest.raises(error, match=words):
        hashed_files.download(context, f"{server.url}/{name}.deb", sha256, folder / "got")
    assert list(folder.iterdir()) == []
    assert len(server.asked) == calls


def dpkg(run: Recorder, *installed: str) -> None:
    """dpkg, for which each file is the package `enroot`."""
    run.answer("dpkg-deb", "enroot 4.1.2-1")
    run.answer("dpkg-query", "".join(f"installed {name}\n" for name in installed))


def test_packages_are_installed_once_from_the_archive_and_from_an_address(
    tmp_path: Path, server: FileServer
) -> None:
    other = b"another"
    package = Package("site/pyxis.deb", hashlib.sha256(other).hexdigest())
    wanted = Containers("pyxis", (Package(f"{server.url}/whole.deb", SHA256), package))
    context, run = machine(tmp_path, containers=wanted)
    archived = tmp_path / "root/opt/slurm-stacks/current" / package.archived()
    archived.parent.mkdir()
    archived.write_bytes(other)
    dpkg(run)
    assert packages.install(context).endswith("zstd, nftables, enroot, enroot")
    install = next(one for one in reversed(run.having("install")) if "--simulate" not in one)
    files = install.split()[-2:]
    assert [Path(one).stem for one in files] == [SHA256[:16], package.sha256[:16]]
    assert not any(Path(one).exists() for one in files), "nothing is left of them"

    run.calls.clear()
    dpkg(run, "enroot 4.1.2-1")
    assert pyxis.install(context) == []
    assert len(server.asked) == 1
    dpkg(run, "enroot 4.1.1-1")
    assert pyxis.install(context) == ["enroot", "enroot"], "another version took its place"


def test_a_package_of_another_hash_stops_the_boot(tmp_path: Path, server: FileServer) -> None:
    wanted = Containers("pyxis", (Package(f"{server.url}/whole.deb", "1" * 64),))
    context, run = machine(tmp_path, containers=wanted)
    with pytest.raises(ServiceError, match="it is not installed"):
        pyxis.install(context)
    assert not any(call.startswith("apt-get") for call in run.calls)


def installed(root: Path, plugin: str = "usr/lib/x86_64-linux-gnu/slurm-wlm") -> None:
    for name in ("usr/bin/enroot", f"{plugin}/{texts.PYXIS_PLUGIN}"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_a_machine_is_configured_and_forgets_it_when_the_key_is_gone(tmp_path: Path) -> None:
    wanted = Containers("pyxis", images="/fsx/enroot")
    context, run = machine(tmp_path, containers=wanted, mounts=(*NFS, SCRATCH))
    root = tmp_path / "root"
    run.answer("srun", HELP)
    with pytest.raises(RuntimeError, match=r"Pyxis is not installed \(no spank_pyxis\.so in /usr/lib/slurm"):
        pyxis.configure(context)
    installed(root)
    pyxis.configure(context)
    line = root / texts.PYXIS_LINE
    plugin = f"{root}/usr/lib/x86_64-linux-gnu/slurm-wlm/spank_pyxis.so"
    assert line.read_text().splitlines()[1] == f"required {plugin} runtime_path=/run/pyxis"
    assert (root / texts.ENROOT).read_text().splitlines()[1:] == [
        "ENROOT_RUNTIME_PATH /run/enroot/$(id -u)",
        "ENROOT_CACHE_PATH /fsx/enroot/$(id -u)",
        "ENROOT_DATA_PATH /local_scratch/enroot/$(id -u)",
    ]
    for folder in ("run/enroot", "fsx/enroot", "local_scratch/enroot"):
        assert (root / folder).stat().st_mode & 0o7777 == 0o1777
    shared = (root / texts.ENROOT_MOUNTS).read_text().splitlines()[1:]
    assert [one.split()[:2] for one in shared] == [[p, p] for p in ("/home", "/apps", "/local_scratch")]
    pyxis.configure(machine(tmp_path)[0])
    assert not line.exists()


def test_a_plugin_that_slurm_refuses_is_taken_back_and_said(tmp_path: Path) -> None:
    context, run = machine(tmp_path, containers=Containers("pyxis"))
    context.report.content["facts"]["slurm"] = "slurm-wlm 23.11.4"
    installed(tmp_path / "root")
    run.fail("srun", said="srun: error: spank: spank_pyxis.so: Incompatible plugin version")
    with pytest.raises(
        RuntimeError, match=r"built for slurm-wlm 23\.11\.4.*\nsrun: error: .* Incompatible plugin version"
    ):
        pyxis.configure(context)
    assert not (tmp_path / "root" / texts.PYXIS_LINE).exists(), "srun works without it"


@pytest.mark.skipif(shutil.which("srun") is None, reason="Slurm is not installed")
def test_the_installed_slurm_refuses_what_is_no_plugin(tmp_path: Path) -> None:
    context, run = machine(tmp_path, containers=Containers("pyxis"))
    installed(tmp_path / "root")
    run.answer("srun", lambda *argv: command.run(*argv, **run.options[-1]))
    with pytest.raises(RuntimeError, match=r"Slurm does not load Pyxis: .*\n.*srun: error: "):
        pyxis.configure(context)


PLUGINS = [
    path for folder in texts.PLUGIN_FOLDERS for path in Path("/").glob(f"{folder}/{texts.PYXIS_PLUGIN}")
]


@pytest.mark.skipif(
    not PLUGINS or shutil.which("srun") is None,
    reason="Pyxis is on no package registry; it is not installed here",
)
def test_the_installed_slurm_loads_the_installed_pyxis(tmp_path: Path) -> None:
    context, run = machine(tmp_path, containers=Containers("pyxis"))
    installed(tmp_path / "root", plugin="usr/lib/slurm")
    copy = tmp_path / "root/usr/lib/slurm" / texts.PYXIS_PLUGIN
    shutil.copyfile(PLUGINS[0], copy)
    run.answer("srun", lambda *argv: command.run(*argv, **run.options[-1]))
    pyxis.configure(context)
    assert str(copy) in (tmp_path / "root" / texts.PYXIS_LINE).read_text()


def test_a_node_with_gpus_has_nvidias_tools_by_the_known_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[Any] = []
    monkeypatch.setattr(
        apt_repositories, "add_repository", lambda *_a, **its: keys.append(its["fingerprint"])
    )
    plain, run = machine(tmp_path, "compute", "v100-0", partitions=(V100,), containers=Containers("oci"))
    assert pyxis.install_toolkit(plain) == []
    assert run.calls == []
    context, run = machine(tmp_path, "compute", "v100-0", partitions=(V100,), containers=Containers("pyxis"))
    assert pyxis.install_toolkit(context) == [f"libnvidia-container-tools {pyxis.TOOLKIT_VERSION}"]
    assert keys == [pyxis.TOOLKIT_FINGERPRINT]
    (install,) = run.having("install")
    assert install.split()[-2:] == [f"{name}={pyxis.TOOLKIT_VERSION}" for name in pyxis.TOOLKIT_PACKAGES]
    hook = Path(machine_steps.__file__).parents[2] / "examples/hooks/docker.sh"
    assert f"TOOLKIT={pyxis.TOOLKIT_VERSION} " in hook.read_text(), "one version everywhere"
    cli = tmp_path / "root" / pyxis.TOOLKIT_CLI
    cli.parent.mkdir(parents=True, exist_ok=True)
    cli.touch()
    assert pyxis.install_toolkit(context) == [], "an image has them"
