"""The package itself: its two halves fit, and its documentation works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[1]
PAGE = PYTHON.parent / "docs" / "python.md"


def test_the_synchronous_half_is_generated() -> None:
    subprocess.run([sys.executable, PYTHON / "generate_sync.py", "--check"], check=True)


def read_examples() -> list[str]:
    """Python blocks of the page, but those that say why they are not run."""
    blocks = re.findall(r"(<!-- not run: [^\n]* -->\n)?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [code for not_run, code in blocks if not not_run]


@pytest.mark.parametrize("code", read_examples())
def test_examples_of_the_page_run(code: str, daemon: str, client, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("example", sorted((PYTHON / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_of_the_adapters_run(example: Path, daemon: str, client) -> None:
    subprocess.run([sys.executable, example], check=True, stdout=subprocess.DEVNULL)
