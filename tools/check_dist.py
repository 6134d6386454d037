"""Check what `make dist` built, in an environment as a user would have it: python tools/check_dist.py dist

The wheels go into a fresh environment, which borrows the libraries of the one that runs this (torch is large) but none
of its packages' sources. First xshare by itself, which must say how to get nano, then nano beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

LARGEST = 1_000_000  # bytes of xshare's own files: weights and evidence are none of them


def names_of(file: Path) -> list[str]:
    if file.suffix == ".whl":
        return zipfile.ZipFile(file).namelist()
    with tarfile.open(file) as archive:
        return archive.getnames()


def check_files(folder: Path) -> tuple[Path, Path]:
    """Sizes and contents of all four files -> the wheels of xshare and of nano"""
    wheels = []
    for kind in ("xshare", "xshare_nano"):
        (wheel,), (source,) = folder.glob(f"{kind}-*.whl"), folder.glob(f"{kind}-*.tar.gz")
        for file in (wheel, source):
            weights = sum(name.endswith(".safetensors") for name in names_of(file))
            print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB, {weights} files of weights")
            assert weights == (0 if kind == "xshare" else 3), f"{file.name} has {weights} files of weights"
            assert kind == "xshare_nano" or file.stat().st_size < LARGEST, f"{file.name} is too large"
        wheels.append(wheel)
    assert any(name.endswith("report/page.css") for name in names_of(wheels[0])), "the report's style is missing"
    return wheels[0], wheels[1]


class Fresh:
    """A new environment with this one's libraries."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.bin = folder / "bin"
        site = next(folder.glob("lib/python*/site-packages"))
        (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            env=environment,
            cwd=self.bin.parent,
            capture_output=True,
            text=True,
            check=False,
        )

    def says(self, *command: str, status: int = 0) -> str:
        done = self.run(*command)
        printed = done.stdout + done.stderr
        assert done.returncode == status, f"{' '.join(command)} ended with {done.returncode}:\n{printed}"
        return printed

    def install(self, wheel: Path) -> None:
        pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed"]
        self.says("python", *pip, str(wheel))


def main(folder: Path) -> None:
    xshare, nano = check_files(folder)
    demo = ["xshare", "demo", "--questions", "1", "--policy", "balanced", "--no-speed", "--jobs", "1"]
    with tempfile.TemporaryDirectory() as place:
        fresh = Fresh(Path(place, "environment").resolve())
        fresh.install(xshare)
        location = fresh.says("python", "-c", "import xshare; print(xshare.__file__)")
        assert location.startswith(str(fresh.bin.parent)), f"xshare was imported from {location}"
        assert "oea" in fresh.says("xshare", "methods")
        output = fresh.says(*demo, status=2)
        assert "pip install ./nano" in output, output
        print(output.strip())
        fresh.install(nano)
        output = fresh.says(*demo)
        assert "balanced" in output, output
        print(output.strip())


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
