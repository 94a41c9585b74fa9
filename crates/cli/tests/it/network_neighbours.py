"""Tries to reach this sandbox's neighbours past its rules: sockets of the host, and another sandbox. Prints for each
attempt whether anything came back.

usage: network_neighbours.py HOST_PORT SIBLING_PORT SIBLING_ADDRESS ALLOWED_PORT SOCKET...

HOST_PORT is that of a server on the host's loopback that no rule names, SIBLING_PORT that of a server in the other
sandbox, and SIBLING_ADDRESS an address that was invented there, at which ALLOWED_PORT leads to an allowed host. Each
SOCKET is one of Unix: a path, or an abstract name behind an @.
"""

import os
import socket
import struct
import sys
from urllib.parse import urlsplit

host_port, sibling_port = map(int, sys.argv[1:3])
sibling_address, allowed_port = sys.argv[3], int(sys.argv[4])
unix_sockets = sys.argv[5:]
HELPER_ADDRESS = "127.63.0.53"
SOCKS_PORT = 1080
TIMEOUT_SECONDS = 10
# The host's loopback in every writing, and where hosts of containers and machines are usually found.
HOST_WRITINGS = [
    "127.0.0.1", "127.1", "0177.0.0.1", "0x7f.0.0.1", "2130706433", "0.0.0.0", "127.0.0.2", "::1", "::",
    "::ffff:127.0.0.1", "64:ff9b::7f00:1", "localhost", "ip6-localhost", "localhost.localdomain",
    "host.docker.internal", "gateway.docker.internal", "host.containers.internal", "10.0.2.2", "172.17.0.1",
    "169.254.1.1", "127.0.0.1.nip.io", "pages.test@127.0.0.1",
] if "HOST_WRITINGS" not in os.environ else os.environ["HOST_WRITINGS"].split()  # fmt: skip


def attempt(what, act):
    try:
        act()
        print(what, "answered")
    except (OSError, UnicodeError):
        print(what, "failed")


def greet(stream):
    """Something comes back from a server that is there."""
    stream.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    if not stream.recv(100).startswith(b"HTTP/1.1 200"):
        raise OSError("no answer")


def connect(host, port):
    with socket.create_connection((host, port), timeout=TIMEOUT_SECONDS) as stream:
        greet(stream)


def connect_by_proxy(host, port):
    proxy = urlsplit(os.environ["HTTP_PROXY"])
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with socket.create_connection((proxy.hostname, proxy.port), timeout=TIMEOUT_SECONDS) as stream:
        stream.sendall(f"CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
        if b" 200 " not in stream.recv(1000):
            raise OSError("no tunnel")
        greet(stream)


def ask_proxy(host, port):
    proxy = urlsplit(os.environ["HTTP_PROXY"])
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with socket.create_connection((proxy.hostname, proxy.port), timeout=TIMEOUT_SECONDS) as stream:
        stream.sendall(f"GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n".encode())
        if b" 200 " not in stream.recv(1000):
            raise OSError("no answer")


def connect_by_socks(host, port):
    with socket.create_connection((HELPER_ADDRESS, SOCKS_PORT), timeout=TIMEOUT_SECONDS) as stream:
        stream.sendall(bytes([5, 1, 0]))
        stream.recv(2)
        name = host.encode()
        stream.sendall(bytes([5, 1, 0, 3, len(name)]) + name + struct.pack("!H", port))
        reply = stream.recv(10)
        if len(reply) < 2 or reply[1] != 0:
            raise OSError("not granted")
        greet(stream)


def connect_unix(name, kind):
    address = "\0" + name[1:] if name.startswith("@") else name
    with socket.socket(socket.AF_UNIX, kind) as stream:
        stream.settimeout(TIMEOUT_SECONDS)
        stream.connect(address)
        stream.send(b"hello")


WAYS = {"direct": connect, "tunnel": connect_by_proxy, "proxy": ask_proxy, "socks": connect_by_socks}
for host in HOST_WRITINGS:
    for way, act in WAYS.items():
        for of, port in [("host", host_port), ("sibling", sibling_port)]:
            attempt(f"{of} at {host} by {way}", lambda: act(host, port))
for way, act in WAYS.items():
    attempt(f"address of the sibling by {way}", lambda: act(sibling_address, allowed_port))
for name in unix_sockets:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        attempt(f"socket {name}", lambda: connect_unix(name, kind))
