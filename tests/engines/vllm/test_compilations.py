"""Kernels compiled while an engine runs are counted, those in Triton's cache are not."""

import os
import subprocess
import sys

import pytest

from xshare.engines.vllm.compilations import compilations

triton = pytest.importorskip("triton")
# For an H200, which need not be here. In a process of its own: other tests interpret kernels.
COMPILES = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from xshare.engines.vllm.compilations import compilations

@triton.jit
def add_one(pointer):
    triton.language.store(pointer, triton.language.load(pointer) + 1)

def compile_it():
    triton.compile(ASTSource(add_one, {"pointer": "*fp32"}, {}, {}), target=GPUTarget("cuda", 90, 32))

with compilations() as outer, compilations() as names:
    compile_it()
    assert names == ["add_one"], names
    compile_it()
assert names == outer == ["add_one"], (names, outer)
compile_it()
assert names == ["add_one"], names
"""


def test_a_kernel_counts_when_it_is_compiled_and_not_when_it_is_found(tmp_path):
    script = tmp_path / "compiles.py"  # Triton reads a kernel from its file
    script.write_text(COMPILES)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    ran = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr


def test_a_run_that_breaks_off_is_no_longer_listened_to():
    before = triton.knobs.compilation.listener
    with pytest.raises(ValueError, match="broken off"), compilations():
        raise ValueError("broken off")
    assert triton.knobs.compilation.listener is before
