"""Puts the program into the wheel where ``STOCKADE_BUNDLE`` names it, so that an installation needs nothing else."""

import os

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: Processors by their number in the header of a program.
PROCESSORS = {62: "x86_64", 183: "aarch64"}


class BundleHook(BuildHookInterface):
    def initialize(self, version, build_data):
        binary = os.environ.get("STOCKADE_BUNDLE")
        if not binary:
            return
        if not os.path.isabs(binary):
            # Builders change the directory: a relative path would name another file, or none.
            raise ValueError(f"STOCKADE_BUNDLE is not an absolute path: {binary}")
        build_data["force_include"][binary] = "stockade/bin/stockade"
        build_data["pure_python"] = False
        # The program of scripts/dist is static: any Linux of its processor runs it.
        build_data["tag"] = f"py3-none-linux_{read_processor(binary)}"


def read_processor(binary):
    """The processor that a program is for, which need not be that of the builder."""
    with open(binary, "rb") as program:
        header = program.read(20)
    if header[:4] != b"\x7fELF" or int.from_bytes(header[18:20], "little") not in PROCESSORS:
        raise ValueError(f"STOCKADE_BUNDLE is not a program for {' or '.join(PROCESSORS.values())}: {binary}")
    return PROCESSORS[int.from_bytes(header[18:20], "little")]
