"""A network link of a given rate and delay between two network namespaces of this program's own:

    .venv/bin/python -m tests.bench.shaped_link --link 1000,0.3

It needs root. Run as a program, it measures what the link gives; `speed_up` trains over it.

Not every kernel has netem, so packets go through this process: each namespace has a TUN interface, and a
thread passes packets from one to the other as a wire would, one after another at the link's rate, each after
the delay. Packets are large (60,000 bytes), because a process passes fewer than 20,000 a second; network
cards give the kernel such large pieces, too. The process takes some percent of a core from the workers.
"""

from __future__ import annotations

import argparse
import collections
import fcntl
import os
import select
import struct
import subprocess
import sys
import threading
import time
from types import TracebackType

from tests.bench.figures import parser

PRINTS = r"^\d+ Mbit/s, \d+\.\d\d ms there and back$"
MTU = 60_000
BACKLOG = 4 << 20
"""The most bytes that wait for the link in one direction. More bytes wait in the kernel's queue."""
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


class Link:
    """Two namespaces and the link between them, as long as the `with` block lasts.

    Args:
        megabits: The rate in each direction, a second.
        milliseconds: The delay from one side to the other and back.
    """

    def __init__(self, megabits: float, milliseconds: float) -> None:
        self._seconds_a_byte = 8 / (megabits * 1e6)
        self._delay = milliseconds / 2000
        self._names = [f"slurm-stacks-bench-{os.getpid()}-{side}" for side in (0, 1)]
        self._over = threading.Event()
        self._files: list[int] = []
        self._thread = threading.Thread(target=self._carry, daemon=True)

    def __enter__(self) -> Link:
        try:
            for side, name in enumerate(self._names):
                subprocess.run(["ip", "netns", "add", name], check=True)
                device = f"bench{os.getpid()}-{side}"[:15]
                file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                self._files.append(file)
                fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
                subprocess.run(["ip", "link", "set", device, "netns", name], check=True)
                ip = ["ip", "-n", name]
                subprocess.run([*ip, "link", "set", "lo", "up"], check=True)
                subprocess.run([*ip, "link", "set", device, "mtu", str(MTU), "up"], check=True)
                own, other = self.address(side), self.address(1 - side)
                subprocess.run([*ip, "address", "add", own, "peer", other, "dev", device], check=True)
        except BaseException:
            self._remove()
            raise
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._remove()

    def address(self, side: int) -> str:
        return f"10.213.0.{side + 1}"

    def inside(self, side: int) -> list[str]:
        """Return the words before a command that run it on one side."""
        return ["ip", "netns", "exec", self._names[side]]

    def _remove(self) -> None:
        for file in self._files:
            os.close(file)
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)

    def _carry(self) -> None:
        waiting: list[collections.deque[tuple[float, bytes]]] = [collections.deque(), collections.deque()]
        held, free = [0, 0], [0.0, 0.0]
        while not self._over.is_set():
            now = time.monotonic()
            soonest = now + 0.2
            for side, queue in enumerate(waiting):
                while queue and queue[0][0] <= now:
                    _, packet = queue.popleft()
                    held[side] -= len(packet)
                    os.write(self._files[1 - side], packet)
                if queue:
                    soonest = min(soonest, queue[0][0])
            sources = [self._files[side] for side in (0, 1) if held[side] < BACKLOG]
            ready, _, _ = select.select(sources, [], [], max(0.0, soonest - time.monotonic()))
            for file in ready:
                side = self._files.index(file)
                packet = os.read(file, MTU + 100)
                free[side] = max(free[side], time.monotonic()) + len(packet) * self._seconds_a_byte
                waiting[side].append((free[side] + self._delay, packet))
                held[side] += len(packet)


PROBE = """
import socket, sys, time
own, other, listens = sys.argv[1], sys.argv[2], sys.argv[3] == "1"
if listens:
    peer, _ = socket.create_server((own, 5001)).accept()
    while word := peer.recv(1):
        peer.sendall(word)
        if word == b"x":
            left = 50_000_000
            while left:
                left -= len(peer.recv(min(left, 1 << 20)))
            peer.sendall(b"y")
else:
    for _ in range(100):
        try:
            peer = socket.create_connection((other, 5001))
            break
        except OSError:
            time.sleep(0.1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    trips = []
    for _ in range(200):
        began = time.monotonic()
        peer.sendall(b"a")
        peer.recv(1)
        trips.append(time.monotonic() - began)
    began = time.monotonic()
    peer.sendall(b"x")
    peer.recv(1)
    peer.sendall(bytes(50_000_000))
    peer.recv(1)
    rate = 400 / (time.monotonic() - began)
    print(f"{rate:.0f} Mbit/s, {1000 * sorted(trips)[100]:.2f} ms there and back")
"""


def measured(link: Link) -> str:
    """Return the rate and the delay that a connection over the link reaches."""
    ends = []
    for side in (1, 0):
        command = [sys.executable, "-c", PROBE, link.address(side), link.address(1 - side), str(side)]
        ends.append(subprocess.Popen([*link.inside(side), *command], stdout=subprocess.PIPE, text=True))
    try:
        return ends[1].communicate(timeout=60)[0].strip()
    finally:
        for end in ends:
            end.kill()
            end.wait()


def from_text(text: str) -> Link:
    """Return the link of an option's value, `MBIT,MS`."""
    megabits, _, milliseconds = text.partition(",")
    return Link(float(megabits), float(milliseconds))


def options() -> argparse.ArgumentParser:
    arguments = parser(__doc__)
    arguments.add_argument("--link", type=from_text, metavar="MBIT,MS", default="1000,0.3")
    return arguments


def main() -> int:
    with options().parse_args().link as link:
        print(measured(link))
    return 0


if __name__ == "__main__":
    sys.exit(main())
