"""A task of a multi-node job that meets the others as launchers do: it reaches the first node by its name.

It works like torch.distributed's TCPStore under torchrun: the host with the name MASTER_ADDR listens at
MASTER_PORT, and every task, including the host's own, connects there by name. The server tells each task who
came. Each task of a step runs `python meeting.py TASKS`.
"""

import json
import os
import socket
import sys
import threading
import time


def serve(server: socket.socket, tasks: int) -> None:
    """Wait for all tasks, then tell each of them who came."""
    met: dict[str, str] = {}
    connections = []
    while len(met) < tasks:
        connection, _ = server.accept()
        stream = connection.makefile("rw")
        name = stream.readline().strip()
        met[name] = connection.getsockname()[0]
        connections.append((connection, stream))
    for connection, stream in connections:
        stream.write(json.dumps(met) + "\n")
        stream.flush()
        connection.close()


def connect(address: str, port: int) -> socket.socket:
    """Connect by name; the server may not listen yet."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((address, port), 60)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main() -> None:
    tasks = int(sys.argv[1])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serving = None
    if socket.gethostname() == address:
        server = socket.create_server((address, port))
        serving = threading.Thread(target=serve, args=(server, tasks))
        serving.start()
    with connect(address, port) as connection:
        stream = connection.makefile("rw")
        stream.write(socket.gethostname() + "\n")
        stream.flush()
        print(socket.gethostname(), stream.readline(), end="")
    if serving is not None:
        serving.join()


if __name__ == "__main__":
    main()
