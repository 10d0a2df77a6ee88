"""Stands for a process that the fork server makes: hands it this one's arguments, variables, folder and streams.

Run by path as `python -I -S client.py ARGUMENTS…`, where the interpreter would be run with these arguments. Signals are
passed on, the exit status comes back, and when this process is killed so is the other.
"""

import json
import os
import signal
import socket
import sys

SERVER = "FORK_SERVER"
PYTHON = "FORK_SERVER_PYTHON"
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(os.environ[SERVER])
        request = json.dumps({"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()})
        socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
        server.sendall(request.encode())
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: server.send(bytes([number])))
        status = server.recv(2)
    if len(status) < 2:
        sys.exit("the fork server is gone")
    code = int.from_bytes(status, "big", signed=True)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
