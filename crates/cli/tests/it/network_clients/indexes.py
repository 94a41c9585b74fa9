"""Lays out a package index of one tiny package, as static files for server.py.

usage: indexes.py python|node|rust|go DIRECTORY URL [locked]

URL is where the directory is served: some indexes name their files by whole addresses. A locked index tells its clients
that they have to authorize themselves, where that has to be told.
"""

import hashlib
import io
import json
import pathlib
import sys
import tarfile
import zipfile

kind, directory, url, *locked = sys.argv[1:]
root = pathlib.Path(directory)


def write(path, content):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)


def make_zip(files):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return packed.getvalue()


def make_tar(files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


def lay_out_python():
    """PEP 503: a page for each project, with links to its files."""
    about = "tiny-1.0.dist-info"
    wheel = make_zip(
        {
            "tiny.py": "print('tiny of python')\n",
            f"{about}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{about}/RECORD": f"tiny.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n",
        }
    )
    name = "tiny-1.0-py3-none-any.whl"
    digest = hashlib.sha256(wheel).hexdigest()
    write(f"files/{name}", wheel)
    write("simple/tiny/index.html", f'<a href="../../files/{name}#sha256={digest}">{name}</a>')


def lay_out_node():
    """The registry's document of a package, and its archive."""
    about = {"name": "tiny", "version": "1.0.0", "main": "tiny.js"}
    archive = make_tar(
        {"package/package.json": json.dumps(about), "package/tiny.js": "console.log('tiny of node')\n"}
    )
    digest = hashlib.sha1(archive).hexdigest()
    dist = {"tarball": f"{url}/tiny-1.0.0.tgz", "shasum": digest}
    document = {"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {**about, "dist": dist}}}
    write("tiny-1.0.0.tgz", archive)
    write("tiny", json.dumps(document))


def lay_out_rust():
    """A sparse registry: its configuration, one line for each version, and archives."""
    manifest = '[package]\nname = "tiny"\nversion = "1.0.0"\nedition = "2021"\n'
    crate = make_tar({"tiny-1.0.0/Cargo.toml": manifest, "tiny-1.0.0/src/lib.rs": "//! Tiny, of rust.\n"})
    line = {"name": "tiny", "vers": "1.0.0", "deps": [], "features": {}, "yanked": False}
    line["cksum"] = hashlib.sha256(crate).hexdigest()
    write("config.json", json.dumps({"dl": f"{url}/crates", "auth-required": bool(locked)}))
    write("ti/ny/tiny", json.dumps(line) + "\n")
    write("crates/tiny/1.0.0/download", crate)


def lay_out_go():
    """The protocol of module proxies: list, information, module file and archive of a version."""
    module, version = "example.test/tiny", "v1.0.0"
    manifest = f"module {module}\n\ngo 1.19\n"
    prefix = f"{module}@{version}"
    archive = make_zip({f"{prefix}/go.mod": manifest, f"{prefix}/tiny.go": "// Package tiny, of go.\npackage tiny\n"})
    at = f"{module}/@v"
    write(f"{at}/list", f"{version}\n")
    write(f"{at}/{version}.info", json.dumps({"Version": version, "Time": "2026-01-01T00:00:00Z"}))
    write(f"{at}/{version}.mod", manifest)
    write(f"{at}/{version}.zip", archive)


{"python": lay_out_python, "node": lay_out_node, "rust": lay_out_rust, "go": lay_out_go}[kind]()
