"""Keeps the connections among the processes of a run away from the proxies that the environment names.

Only gRPC, which TensorFlow's servers use, would send them through a proxy: it takes `http_proxy` even for 127.0.0.1.
The control connection, and the ranks' exchanges use plain sockets.
"""

import os
from collections.abc import MutableMapping

# gRPC prefers the first of these variables. Both list targets to which gRPC connects directly.
OF_GRPC = "no_grpc_proxy"
OF_ALL = "no_proxy"
# The processes of a run address each other by IPv4 addresses, never by names.
EVERY_ADDRESS = "0.0.0.0/0"


def connect_directly(environ: MutableMapping[str, str] = os.environ) -> None:
    """Makes gRPC connect directly to each target that is named by an IPv4 address. Targets that are named by a host
    name, for example of the user's input pipeline, use the same proxy as before.

    Call this function before the process starts a thread, because it changes the environment (docs/design/0034).
    """
    chosen = environ.get(OF_GRPC, environ.get(OF_ALL, ""))
    environ[OF_GRPC] = ",".join(filter(None, (chosen, EVERY_ADDRESS)))
