"""Sends one message through a WebSocket and prints what comes back, by bare sockets: no library hides a step.

usage: websocket.py name|proxy HOST PORT

`name` connects to what the name leads to, `proxy` asks the HTTP proxy of the environment for a tunnel.
"""

import os
import socket
import sys
from urllib.parse import urlsplit

way, host, port = sys.argv[1:]
MASK = b"\x01\x02\x03\x04"


def read_head(stream):
    """The lines until the empty one; the first is the answer's status."""
    return list(iter(lambda: stream.readline().decode().rstrip("\r\n"), ""))


def exchange(connection):
    stream = connection.makefile("rwb")
    if way == "proxy":
        stream.write(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        stream.flush()
        head = read_head(stream)
        if " 200 " not in head[0]:
            sys.exit(f"no tunnel: {head}")
    stream.write(
        f"GET /echo HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    stream.flush()
    head = read_head(stream)
    accepts = [line for line in head if line.lower() == "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="]
    if " 101 " not in head[0] or not accepts:
        sys.exit(f"no WebSocket: {head}")
    message = b"through the socket"
    masked = bytes(byte ^ MASK[at % 4] for at, byte in enumerate(message))
    stream.write(bytes([0x81, 0x80 | len(message)]) + MASK + masked)
    stream.flush()
    _, length = stream.read(2)
    print(stream.read(length).decode())


proxy = urlsplit(os.environ["HTTP_PROXY"])
peer = (proxy.hostname, proxy.port) if way == "proxy" else (host, int(port))
with socket.create_connection(peer, timeout=30) as connection:
    exchange(connection)
