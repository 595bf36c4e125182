"""A small classifier with torch.distributed: the gradients of all workers are averaged at every step.

It runs as it is under this project's launcher (`script: torch_ddp.py`), under torchrun (`script:
torchrun.sh`) and alone. The first two set the same variables: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
MASTER_PORT.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EXAMPLES, FEATURES, CLASSES = 8192, 64, 10


def data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around ten centres: made here, so that the example needs no download."""
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (EXAMPLES,), generator=source)
    return centres[labels] + 2 * torch.randn(EXAMPLES, FEATURES, generator=source), labels


def report(**values: float) -> None:
    """Append a line of progress, which `./cluster up` and `./cluster run` show."""
    if path := os.environ.get("SLURM_STACKS_PROGRESS"):
        with Path(path).open("a") as file:
            print(json.dumps(values), file=file)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64, help="examples for each worker and step")
    options = parser.parse_args()

    gpus = torch.cuda.is_available()
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if gpus else "gloo")
    else:
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpus else torch.device("cpu")

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, CLASSES)).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of = nn.CrossEntropyLoss()
    points, labels = (tensor[rank::size].to(device) for tensor in data(seed=1))

    began = time.monotonic()
    for epoch in range(1, options.epochs + 1):
        total = torch.zeros(1, device=device)
        batches = list(zip(points.split(options.batch), labels.split(options.batch), strict=True))
        for inputs, wanted in batches:
            optimizer.zero_grad()
            loss = loss_of(model(inputs), wanted)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            report(epoch=epoch, epochs=options.epochs, loss=total.item() / size / len(batches))
    seconds = time.monotonic() - began

    if rank == 0:
        held_out, answers = (tensor.to(device) for tensor in data(seed=2))
        with torch.no_grad():
            accuracy = (network(held_out).argmax(1) == answers).float().mean().item()
        print(f"{size} workers: {seconds:.1f} s, held-out accuracy {accuracy:.4f}")
        if path := os.environ.get("SLURM_STACKS_RESULT"):
            values = {"seconds_train": seconds, "test_accuracy": accuracy, "workers": size}
            Path(path).write_text(json.dumps(values))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
