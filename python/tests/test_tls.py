"""A daemon by TLS, and that a token goes nowhere else: a real daemon, with certificates made by openssl."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

import pytest

from stockade import AsyncSandbox, Client, Sandbox, StockadeError
from stockade._daemon import STOP_TIMEOUT_SECONDS, find_binary


@dataclass(frozen=True)
class TlsDaemon:
    url: str
    token: str
    authority: Path


def make_certificate(directory: Path, name: str, *extensions: str) -> "tuple[Path, Path]":
    """A certificate and its key, which only this user can read."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    for extension in extensions:
        command += ["-addext", extension]
    subprocess.run(command, check=True, capture_output=True)
    key.chmod(0o600)
    return certificate, key


@pytest.fixture(scope="module")
def tls_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsDaemon]:
    """A daemon on 127.0.0.1 whose certificate signs itself."""
    directory = tmp_path_factory.mktemp("tls")
    name = "subjectAltName=IP:127.0.0.1"
    certificate, key = make_certificate(directory, "daemon", name, "basicConstraints=critical,CA:FALSE")
    environment = {**os.environ, "STOCKADE_STATE_DIR": str(directory / "state")}
    new = [find_binary(), "token", "new", "python", "--tenant", "team"]
    token = subprocess.run(new, env=environment, check=True, capture_output=True, text=True).stdout.strip()
    serve = [find_binary(), "serve", "--json", "--listen", "127.0.0.1:0"]
    serve += ["--tls-cert", str(certificate), "--tls-key", str(key)]
    serving = subprocess.Popen(serve, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert serving.stdout is not None
    yield TlsDaemon(json.loads(serving.stdout.readline())["url"], token, certificate)
    serving.terminate()
    assert serving.wait(STOP_TIMEOUT_SECONDS) == 0
    serving.stdout.close()


def test_a_daemon_is_used_by_tls(tls_daemon: TlsDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tls_daemon.url.startswith("https://127.0.0.1:")
    monkeypatch.setenv("STOCKADE_CA_FILE", str(tls_daemon.authority))
    with Sandbox(host=tls_daemon.url, token=tls_daemon.token) as sandbox:
        assert sandbox.run("echo hi").stdout == "hi\n"
        sandbox.files.write("large", b"x" * 3_000_000)
        assert sandbox.files.stat("large").size == 3_000_000


def test_it_is_used_with_await(tls_daemon: TlsDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOCKADE_CA_FILE", str(tls_daemon.authority))

    async def run_echo() -> str:
        async with AsyncSandbox(host=tls_daemon.url, token=tls_daemon.token) as sandbox:
            return (await sandbox.run("echo hi")).stdout

    assert asyncio.run(run_echo()) == "hi\n"


def refuse(url: str, token: str, code: str, part: str) -> None:
    with pytest.raises(StockadeError) as caught:
        with Client(host=url, token=token) as client:
            client.health()
    assert caught.value.code == code and part in str(caught.value), caught.value


def test_one_that_cannot_be_verified_is_not_used(
    tls_daemon: TlsDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STOCKADE_CA_FILE", raising=False)
    refuse(tls_daemon.url, tls_daemon.token, "unavailable", "is not accepted")
    other, key = make_certificate(tmp_path, "other")
    monkeypatch.setenv("STOCKADE_CA_FILE", str(other))
    refuse(tls_daemon.url, tls_daemon.token, "unavailable", "STOCKADE_CA_FILE")
    refuse(tls_daemon.url.replace("https", "HTTPS"), tls_daemon.token, "unavailable", "is not accepted")
    monkeypatch.setenv("STOCKADE_CA_FILE", str(tls_daemon.authority))
    refuse(tls_daemon.url.replace("127.0.0.1", "localhost"), tls_daemon.token, "unavailable", "is not accepted")
    monkeypatch.setenv("STOCKADE_CA_FILE", str(key))
    refuse(tls_daemon.url, tls_daemon.token, "invalid", "no certificate can be read")


def test_plain_http_to_its_port_is_told_so(tls_daemon: TlsDaemon) -> None:
    refuse(tls_daemon.url.replace("https", "http"), "stockade_wrong", "invalid", "https://")


@pytest.mark.parametrize(
    ("host", "part"),
    [
        ("http://192.0.2.1:7070", "not be encrypted"),
        ("HTTP://box.example.org", "not be encrypted"),
        ("box.example.org:7070", "not be encrypted"),
        ("http://127.0.0.1.example.org", "not be encrypted"),
        ("http://127.0.0.1@box.example.org", "is not where"),
        ("https://box.example.org/v1", "is not where"),
        ("https://", "is not where"),
        ("https://box.example.org:x", "is not where"),
        ("ftp://box.example.org", "is not where"),
    ],
)
def test_a_token_is_sent_to_no_other_host_without_tls(host: str, part: str) -> None:
    refuse(host, "stockade_secret", "invalid", part)
