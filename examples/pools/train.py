"""A training of two nodes that needs no packages, and goes on where it was when Slurm starts it again.

Each task has its part of the data. In each epoch the first task adds up the gradients of all, so that the
batch is the whole of the data on any machines. After each epoch it saves what it needs to go on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import time
from pathlib import Path

CHECKPOINT = Path("checkpoint.json")
WEIGHTS, EXAMPLES, RATE = 4, 2000, 0.1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=45)
    parser.add_argument(
        "--seconds", type=float, default=1, help="for each epoch, as a larger model would take"
    )
    options = parser.parse_args()
    epochs = options.epochs
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    data = examples()[rank::size]
    state = {"epoch": 0, "weights": [0.0] * WEIGHTS, "nodes": []}
    if CHECKPOINT.exists():
        state = json.loads(CHECKPOINT.read_text())
    if os.environ["SLURM_JOB_NODELIST"] not in state["nodes"]:
        state["nodes"].append(os.environ["SLURM_JOB_NODELIST"])
    others = connect(rank, size)
    for epoch in range(state["epoch"] + 1, epochs + 1):
        time.sleep(options.seconds)
        gradient, loss = add(others, rank, slope(state["weights"], data))
        state["weights"] = [w - RATE * g / EXAMPLES for w, g in zip(state["weights"], gradient, strict=True)]
        state["epoch"] = epoch
        if rank == 0:
            save(state, {"epoch": epoch, "epochs": epochs, "loss": round(loss / EXAMPLES, 6)})
    if rank == 0:
        weights = " ".join(f"{weight:.12f}" for weight in state["weights"])
        values = {"weights": weights, "nodes": ", then ".join(state["nodes"])}
        Path(os.environ["SLURM_STACKS_RESULT"]).write_text(json.dumps(values))


def examples() -> list[tuple[list[float], float]]:
    """Return inputs with the values that a line through them has."""
    chance = random.Random(7)
    inputs = [[chance.uniform(-1, 1) for _ in range(WEIGHTS)] for _ in range(EXAMPLES)]
    return [(x, sum((n + 1) * value for n, value in enumerate(x))) for x in inputs]


def slope(weights: list[float], data: list[tuple[list[float], float]]) -> tuple[list[float], float]:
    """Return the sums of the gradient and of the loss over some examples."""
    gradient, loss = [0.0] * WEIGHTS, 0.0
    for inputs, wanted in data:
        error = sum(w * x for w, x in zip(weights, inputs, strict=True)) - wanted
        loss += error * error
        gradient = [g + 2 * error * x for g, x in zip(gradient, inputs, strict=True)]
    return gradient, loss


def connect(rank: int, size: int) -> list[socket.socket]:
    """Return the connections to all other tasks of the first one, and the one to it of the others."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank:
        for _ in range(600):
            try:
                peer = socket.create_connection(address)
                peer.sendall(json.dumps(rank).encode() + b"\n")
                return [peer]
            except OSError:
                time.sleep(0.1)
        raise SystemExit("the first task does not answer")
    with socket.create_server(("", address[1])) as server:
        peers = [server.accept()[0] for _ in range(size - 1)]
    return sorted(peers, key=receive)  # sums of numbers depend on their order


def add(others: list[socket.socket], rank: int, own: tuple[list[float], float]) -> tuple[list[float], float]:
    """Return the sum of what all tasks have."""
    if rank:
        others[0].sendall(json.dumps(own).encode() + b"\n")
        return receive(others[0])
    for peer in others:
        gradient, loss = receive(peer)
        own = [a + b for a, b in zip(own[0], gradient, strict=True)], own[1] + loss
    for peer in others:
        peer.sendall(json.dumps(own).encode() + b"\n")
    return own


def receive(peer: socket.socket):
    """Return the next line as a value."""
    line = b""
    while not line.endswith(b"\n"):
        if not (part := peer.recv(1)):
            raise SystemExit("another task has ended")
        line += part
    return json.loads(line)


def save(state: dict, progress: dict) -> None:
    """Save the checkpoint under another name first: a machine may go in the middle of it."""
    draft = CHECKPOINT.with_suffix(".new")
    draft.write_text(json.dumps(state))
    draft.replace(CHECKPOINT)
    with Path(os.environ["SLURM_STACKS_PROGRESS"]).open("a") as file:
        print(json.dumps(progress | {"nodes": os.environ["SLURM_JOB_NODELIST"]}), file=file)


if __name__ == "__main__":
    main()
