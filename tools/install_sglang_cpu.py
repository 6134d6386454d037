"""Install SGLang for the CPU into this interpreter's environment by uv: python tools/install_sglang_cpu.py 0.5.23

Its wheels ask for a CUDA build of torch and for kernels that are built for CUDA alone. So: the wheel without its
dependencies, then those of them that its server imports, then a stub in the place of the kernels for text models
(sglang_cpu_stub.py). `pip check` names the others as missing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import requires
from pathlib import Path

# What `sglang.launch_server` imports on a CPU, of what the wheel asks for.
IMPORTED = (
    "aiohttp", "apache-tvm-ffi", "compressed-tensors", "distro", "einops", "fastapi", "gguf", "ipython",
    "mistral-common", "msgspec", "numpy", "openai", "orjson", "packaging", "partial-json-parser", "pillow",
    "prometheus-client", "psutil", "pybase64", "pydantic", "python-multipart", "pyzmq", "regex", "requests", "scipy",
    "sentencepiece", "setproctitle", "soundfile", "tiktoken", "tokenizers", "tqdm", "transformers", "uvicorn", "uvloop",
    "watchfiles", "xgrammar", "zstandard",
)  # fmt: skip
STUBBED = ("sgl_kernel", "torchvision")


def install(*arguments: str) -> None:
    """By uv: it takes a quarter of pip's time, and more than half of all that a test in a fresh environment takes."""
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    subprocess.run([*command, *arguments], check=True)


def main(version: str) -> None:
    install("--no-deps", f"sglang=={version}")
    install("packaging")
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    required = [Requirement(line) for line in requires("sglang") or ()]
    imported = [r for r in required if canonicalize_name(r.name) in IMPORTED and r.marker is None]
    # SGLang imports two more that its wheel does not ask for: Triton comes with torch for CUDA, dill with `datasets`.
    install("triton>=3.6", "dill", *(str(r) for r in imported))
    for name in STUBBED:
        stub = Path(__file__).with_name("sglang_cpu_stub.py")
        shutil.copy(stub, Path(sysconfig.get_path("purelib"), f"{name}.py"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("say which version: python tools/install_sglang_cpu.py 0.5.23")
    main(sys.argv[1])
