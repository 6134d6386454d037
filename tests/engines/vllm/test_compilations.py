"""Kernels compiled while an engine runs are counted, those in Triton's cache are not."""

import pytest

from xshare.engines.vllm.compilations import compilations

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402


def _add_one(pointer):
    triton.language.store(pointer, triton.language.load(pointer) + 1)


def compile_one():
    """For an H200, which need not be here."""
    kernel = triton.runtime.jit.JITFunction(_add_one)
    triton.compile(ASTSource(kernel, {"pointer": "*fp32"}, {}, {}), target=GPUTarget("cuda", 90, 32))


def test_a_kernel_counts_when_it_is_compiled_and_not_when_it_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with compilations() as outer, compilations() as names:
        compile_one()
        assert names == ["_add_one"]
        compile_one()
    assert names == outer == ["_add_one"]
    before = triton.knobs.compilation.listener
    with pytest.raises(ValueError, match="broken off"), compilations():
        raise ValueError("broken off")
    assert triton.knobs.compilation.listener is before
