"""The small programs that Slurm calls, and the daemon's service: where they lie and how they start."""

from __future__ import annotations

from pathlib import Path

from infra.node.bootstrap.services import Service
from infra.node.model import Folders, Settings

NAMES = ("resume", "resume-fail", "suspend", "prolog-slurmctld")


def write(settings: Settings, settings_file: Path) -> None:
    """The programs that slurm.conf names, in `<code>/bin`.

    Slurm calls them without PATH and SLURM_CONF, so all that they need is written into them.
    """
    folders = Folders(settings)
    code = Path(str(folders.code))
    for name in NAMES:
        target = code / "bin" / name
        target.parent.mkdir(exist_ok=True)
        draft = target.with_name(f".{name}.new")
        draft.write_text(
            # -I -S: nothing of the user's environment, no site-packages, half the start-up time.
            f"#!{settings.site.python} -IS\n"
            "import sys\n"
            f"sys.path.insert(0, {str(code)!r})\n"
            "from infra.node.elastic.client import main\n"
            f"sys.exit(main({name!r}, {str(folders.daemon_socket)!r}, {str(folders.lib / 'requests')!r}))\n"
        )
        draft.chmod(0o755)
        draft.replace(target)
    tool = code / "bin" / "slurm-stacks"
    draft = tool.with_name(".slurm-stacks.new")
    draft.write_text(
        f"#!{settings.site.python} -IS\n"
        "import sys\n"
        f"sys.path.insert(0, {str(code)!r})\n"
        "from infra.node.tool import main\n"
        f"sys.exit(main({str(settings_file)!r}, sys.argv[1:]))\n"
    )
    draft.chmod(0o755)
    draft.replace(tool)
    # Here and not in the clients: they may find the daemon down and must have where to leave their request.
    (Path(str(folders.lib)) / "requests").mkdir(parents=True, exist_ok=True)


def daemon_service(settings: Settings, settings_file: Path) -> Service:
    """The elastic daemon. It takes its settings from a file, so that a restart reads the newest."""
    folders = Folders(settings)
    start = (
        f"import sys; sys.path.insert(0, {str(folders.code)!r}); from infra.node.elastic.daemon import main"
    )
    return Service(
        "elastic",
        (settings.site.python, "-I", "-c", f"{start}; main({str(settings_file)!r})"),
        Path(str(folders.log)) / "elastic.log",
        {"SLURM_CONF": str(folders.slurm_conf)},
    )
