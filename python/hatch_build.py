"""Puts the program into the wheel where ``STOCKADE_BUNDLE`` names it, so that an installation needs nothing else."""

import os
import sysconfig

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BundleHook(BuildHookInterface):
    def initialize(self, version, build_data):
        binary = os.environ.get("STOCKADE_BUNDLE")
        if not binary:
            return
        build_data["force_include"][os.path.abspath(binary)] = "stockade/bin/stockade"
        build_data["pure_python"] = False
        # The program is static: any Linux of this processor runs it.
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
