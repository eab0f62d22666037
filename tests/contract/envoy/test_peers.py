"""The peers leave nothing open: what they did would be found in whichever test runs when it is collected."""

from __future__ import annotations

import gc
import socket
import warnings

from support.envoy_peers import Peers


def test_connections_that_come_while_the_peers_end_are_closed() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(20):
            with Peers() as peers:
                engine = peers.engine()
                held = [socket.create_connection(("127.0.0.1", engine.port)) for _ in range(8)]
            for one in held:
                one.close()
        gc.collect()
    assert not [str(warning.message) for warning in seen if issubclass(warning.category, ResourceWarning)]
