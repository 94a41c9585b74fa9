"""Builds the wheel without setuptools, so that nothing has to be downloaded."""

import pathlib
import zipfile

INFO = "words-1.0.dist-info"
FILES = {
    f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: words\nVersion: 1.0\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: backend\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/entry_points.txt": "[console_scripts]\nwords = words:main\n",
}


def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "words-1.0-py3-none-any.whl"
    files = {"words.py": pathlib.Path("words.py").read_text(), **FILES}
    record = "".join(f"{path},,\n" for path in [*files, f"{INFO}/RECORD"])
    with zipfile.ZipFile(pathlib.Path(directory) / name, "w") as wheel:
        for path, text in {**files, f"{INFO}/RECORD": record}.items():
            wheel.writestr(path, text)
    return name
