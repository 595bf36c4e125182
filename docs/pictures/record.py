"""Records the pictures of README and docs: runs commands of this checkout in a terminal and draws that.

    .venv/bin/python docs/pictures/record.py [SCENE …]

`uv sync` makes an environment with all that it needs. The local stack must not be up. The pictures are
written beside this file, one `<scene>.svg` each; every line in them was printed by a real run, with the
checkout's folder shown as ~/slurm-stacks and the user's as ~.
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
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COLUMNS, ROWS = 106, 400

SCENES = {
    "up": ["./cluster up"],
    "use": [
        "sleep 8; ./cluster exec -- sinfo",
        "./cluster exec -- sbatch -N3 --wrap 'srun sleep 60'",
        "sleep 3; ./cluster status",
        "./cluster down",
    ],
    "gcp": ["./cluster plan --stack gcp-cpu | head -8", "./cluster plan --stack gcp-gpu | head -8"],
    "aws": ["./cluster plan --stack aws-cpu | head -8", "./cluster plan --stack aws-gpu | head -9"],
}

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


def shown(commands: list[str], folder: Path = ROOT) -> Text:
    """What a terminal of `COLUMNS` shows after the commands, which are typed at a `$` prompt.

    Raises:
        RuntimeError: a command failed.
    """
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    for command in commands:
        # What keeps the recording in step is not worth showing.
        typed = command.rpartition("; ")[2]
        stream.feed(f"\x1b[1;32m$\x1b[0m \x1b[1m{typed}\x1b[0m\r\n".encode())
        status = run_in_terminal(command, folder, stream)
        if status:
            raise RuntimeError(
                f"{command} ended with status {status}:\n" + "\n".join(screen.display).rstrip()
            )
        if screen.cursor.x:
            stream.feed(b"\r\n")
    return text_of(screen)


def run_in_terminal(command: str, folder: Path, stream: pyte.ByteStream) -> int:
    """Run a command on a terminal of its own; the exit status."""
    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
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
    """The screen's lines with their colours, without the empty ones at the end."""
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
    """A line as it would read on any machine."""
    for folder, name in ((str(ROOT), "~/slurm-stacks"), (str(Path.home()), "~")):
        line = Text(name).join(line.split(folder, allow_blank=True)) if folder in line.plain else line
    return line


def colour(name: str) -> str | None:
    """Rich's name of a terminal's colour; None: the terminal's own."""
    if name == "default":
        return None
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    # pyte calls yellow brown, as the first terminals showed it.
    return {"brown": "yellow", "brightbrown": "bright_yellow"}.get(name, name.replace("bright", "bright_"))


def draw(text: Text, title: str) -> str:
    """The picture, as SVG that loads nothing."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(text, soft_wrap=True)
    svg = console.export_svg(title=title, theme=MONOKAI, code_format=SVG, unique_id=title.replace(" ", "-"))
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenes", nargs="*", choices=[[], *SCENES], metavar="SCENE", help=", ".join(SCENES))
    wanted = parser.parse_args().scenes or list(SCENES)
    for scene in wanted:
        print(f"recording {scene}", file=sys.stderr)
        picture = HERE / f"{scene}.svg"
        picture.write_text(draw(shown(SCENES[scene]), "slurm-stacks"), encoding="utf-8")
        print(picture)


if __name__ == "__main__":
    main()
