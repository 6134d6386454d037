"""A module whose every name can be imported and none called: SGLang on a CPU, without its compiled kernels.

tools/install_sglang_cpu.py puts a copy into an environment as `sgl_kernel`, which has no build for a CPU, and as
`torchvision`, whose builds for some machines need CUDA. Text models import names from both and call two operators.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch


class Absent:
    """Stands for a function or a class that is not there."""

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self.name} is not there on a CPU")


class Stub(ModuleType):
    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")


class Below(MetaPathFinder, Loader):
    """Finds modules below this one, whatever they are called."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith(f"{__name__}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(Below())
sys.modules[__name__].__class__ = Stub
__path__: list[str] = []
__version__ = "0"  # older than what Transformers would use

if __name__ == "sgl_kernel":
    library: Any = torch.library.Library("sgl_kernel", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("init_cpu_threads_env(str cores) -> str")
    library.impl("init_cpu_threads_env", lambda cores: "not bound", "CompositeExplicitAutograd")
    library.define("initialize(int size, int rank) -> ()")
    library.impl("initialize", lambda size, rank: None, "CompositeExplicitAutograd")
