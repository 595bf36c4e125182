"""Record the pictures of README and docs: run commands of this checkout in a terminal and draw that.

    uv run python docs/pictures/record.py [SCENE …]

The local stack must not be up, and the machine should be quiet. The pictures are written beside this file,
one `<scene>.svg` each; every line in them was printed by a real run, with the checkout's folder shown as
~/slurm-stacks and the user's as ~. tests/docs/test_pictures.py and tests/cluster/test_documented_commands.py
run the scenes, and fail when a picture shows something else.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COLUMNS, ROWS = 122, 400
NAMESPACE = "http://www.w3.org/2000/svg"

SCENES = {
    "up": ["./cluster up"],
    "use": [
        "sleep 8; ./cluster exec -- sinfo",
        "./cluster exec -- sbatch -N3 --wrap 'srun sleep 12'",
        "sleep 3; ./cluster status",
        "sleep 15; ./cluster down",
    ],
    # The first plan of a cloud adds its packages to the environment, and says so.
    "gcp": [
        "./cluster plan --stack gcp-cpu >/dev/null 2>&1; ./cluster plan --stack gcp-cpu | head -8",
        "./cluster plan --stack gcp-gpu | head -8",
    ],
    "aws": [
        "./cluster plan --stack aws-cpu >/dev/null 2>&1; ./cluster plan --stack aws-cpu | head -8",
        "./cluster plan --stack aws-gpu | head -9",
    ],
}
LOCAL = {"up", "use"}
"""The scenes of a local cluster, which the second takes down. It needs the first."""

SOMETIMES = re.compile(
    # This depends on what else the machine does, on the benchmark's profile, and on how soon `up` looks.
    r"cores|weights averaged|Other programs took|\S+: controller: |`\./cluster run --nodes|\S+json$"
    # The second alternative is what wraps.
    r"|At ?present|.*has ?nodes ?on ?core"
)
"""Lines that a run may print or not."""
DISTURBED = re.compile("has nodes on core|Other programs took")
"""What `up` says where the machine was not quiet. A picture has none of it."""

# Rich's own, without its web font: a picture must not load anything.
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px ui-monospace, Menlo, Consolas, monospace; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def shown(commands: list[str], folder: Path = ROOT, env: Mapping[str, str] = os.environ) -> Text:
    """Run commands, which are typed at a `$` prompt, and return what a terminal of `COLUMNS` shows then.

    Raises:
        RuntimeError: A command failed.
    """
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    for command in commands:
        # What keeps the recording in step is not worth showing.
        typed = command.rpartition("; ")[2]
        stream.feed(f"\x1b[1;32m$\x1b[0m \x1b[1m{typed}\x1b[0m\r\n".encode())
        status = run_in_terminal(command, folder, stream, env)
        if status:
            raise RuntimeError(
                f"{command} ended with status {status}:\n" + "\n".join(screen.display).rstrip()
            )
        if screen.cursor.x:
            stream.feed(b"\r\n")
    return text_of(screen)


def run_in_terminal(command: str, folder: Path, stream: pyte.ByteStream, env: Mapping[str, str]) -> int:
    """Run a command on a terminal of its own, and return the exit status."""
    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    env = {**env, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        env.pop(name, None)
    process = subprocess.Popen(
        ["sh", "-c", command],
        cwd=folder,
        env=env,
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
    )
    os.close(side)
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux' way to say that nobody has the other side open any more
            break
        if not data:
            break
        stream.feed(data)
    os.close(terminal)
    return process.wait()


def text_of(screen: pyte.Screen) -> Text:
    """Return the screen's lines with their colours, without the empty ones at the end."""
    lines = []
    for row in range(screen.cursor.y + 1):
        cells = screen.buffer[row]
        line = Text()
        for column in range(COLUMNS):
            cell = cells[column]
            line.append(cell.data, Style(color=colour(cell.fg), bold=cell.bold or None))
        line.rstrip()
        lines.append(elsewhere(line))
    while lines and not lines[-1].plain:
        lines.pop()
    return Text("\n").join(lines)


def elsewhere(line: Text) -> Text:
    """Return a line as it would read on any machine."""
    for folder, name in ((str(ROOT), "~/slurm-stacks"), (str(Path.home()), "~")):
        line = Text(name).join(line.split(folder, allow_blank=True)) if folder in line.plain else line
    return line


def colour(name: str) -> str | None:
    """Return Rich's name of a terminal's colour; `None`: the terminal's own."""
    if name == "default":
        return None
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    # pyte calls yellow brown, as the first terminals showed it.
    return {"brown": "yellow", "brightbrown": "bright_yellow"}.get(name, name.replace("bright", "bright_"))


def draw(text: Text, title: str) -> str:
    """Return the picture, as SVG that loads nothing."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(text, soft_wrap=True)
    svg = console.export_svg(title=title, theme=MONOKAI, code_format=SVG, unique_id=title.replace(" ", "-"))
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def drawn(picture: str) -> list[str]:
    """Return the lines of text in a picture without its title, and without the spaces between its colours."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for found in ElementTree.fromstring(picture).iter(f"{{{NAMESPACE}}}text"):
        if "clip-path" in found.attrib:
            place = (float(found.attrib["x"]), (found.text or "").replace("\xa0", " "))
            rows.setdefault(float(found.attrib["y"]), []).append(place)
    lines = ("".join(text for _, text in sorted(row)).rstrip() for _, row in sorted(rows.items()))
    return [line for line in lines if line]


def labels(lines: Iterable[str]) -> set[str]:
    """Return what lines say without what differs from run to run: numbers, paths, values of tables."""
    found = set()
    for line in lines:
        label = re.split(r"\s{2,}", line.strip())[0]
        label = re.sub(r"[~/]\S*/\S*", "PATH", label)
        label = re.sub(r"\d[\d.]*", "N", label)
        if label and not SOMETIMES.match(label):
            found.add(label)
    return found


def main() -> None:
    """Record the scenes that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenes", nargs="*", choices=[[], *SCENES], metavar="SCENE", help=", ".join(SCENES))
    wanted = parser.parse_args().scenes or list(SCENES)
    try:
        for scene in wanted:
            record(scene)
    finally:
        if not LOCAL.isdisjoint(wanted):
            # Nothing is left up, whatever stopped the recording. Where `use` was recorded, nothing is up.
            subprocess.run([ROOT / "cluster", "down", "--stack", "local", "--yes"], cwd=ROOT, check=False)


def record(scene: str) -> None:
    """Run a scene and write its picture.

    Raises:
        SystemExit: The machine was not quiet, so there is no picture.
    """
    print(f"recording {scene}", file=sys.stderr)
    picture = HERE / f"{scene}.svg"
    text = shown(SCENES[scene])
    if DISTURBED.search(text.plain):
        sys.exit(f"{picture.name} was not written: the machine has other work; try again when it is quiet")
    picture.write_text(draw(text, "slurm-stacks"), encoding="utf-8")
    print(picture)


if __name__ == "__main__":
    main()
