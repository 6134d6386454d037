"""The entry point of the group `vllm.general_plugins`: vLLM calls `register` in each of its processes.

This module imports nothing of vLLM. It wraps a few of vLLM's functions once their modules have been imported. The
wrappers change nothing without an `xshare` key in additional_config.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar

from xshare.engines.vllm.settings import is_configured


def register() -> None:
    """Idempotent, because vLLM calls it several times."""
    for name, hook in HOOKS.items():
        if name in sys.modules:
            _hook_once(sys.modules[name], hook)
    if not any(isinstance(finder, AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, AfterImport())


class AfterImport(MetaPathFinder):
    """Runs a hook on a module right after it has been imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in HOOKS or fullname in self._searching:
            return None
        self._searching.add(fullname)
        try:
            spec = find_spec(fullname)
        finally:
            self._searching.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = Hooked(spec.loader, HOOKS[fullname])
        return spec

    _searching: ClassVar[set[str]] = set()


class Hooked(Loader):
    def __init__(self, native: Any, hook: Callable[[Any], None]) -> None:
        self.native, self.hook = native, hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.native.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self.native.exec_module(module)
        _hook_once(module, self.hook)

    def __getattr__(self, name: str) -> Any:  # get_source and the like
        return getattr(self.native, name)


def _hook_once(module: ModuleType, hook: Callable[[Any], None]) -> None:
    if not getattr(module, "_xshare_hooked", False):
        module._xshare_hooked = True  # type: ignore[attr-defined]
        hook(module)


def _after_loading(v2: bool, name: str = "GPUModelRunner") -> Callable[[Any], None]:
    def hook(module: Any) -> None:
        runner_class = getattr(module, name)
        native = runner_class.__dict__.get("load_model")
        if native is None:
            return  # inherited: the parent's is wrapped

        @wraps(native)
        def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
            loaded = native(self, *args, **kwargs)
            if is_configured(self.vllm_config.additional_config):
                from xshare.engines.vllm.runner import attach

                attach(self, v2)
            return loaded

        runner_class.load_model = load_model

    return hook


def _check_early(module: Any) -> None:
    native = module.EngineArgs.create_engine_config

    @wraps(native)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = native(self, *args, **kwargs)
        if is_configured(config.additional_config):
            from xshare.engines.vllm.runner import checked_settings

            checked_settings(config)
        return config

    module.EngineArgs.create_engine_config = create_engine_config


def _add_worker_methods(module: Any) -> None:
    from xshare.engines.vllm.control import add_worker_methods

    add_worker_methods(module.WorkerBase)


def _wrap_core(module: Any) -> None:
    from xshare.engines.vllm.control import reset_after_changes

    reset_after_changes(module.EngineCore)
    from xshare.engines.vllm.protection import keep_blocks_apart

    keep_blocks_apart(module.EngineCore)


def _refuse_requests(module: Any) -> None:
    from xshare.engines.vllm.protection import refuse_early

    refuse_early(module.InputProcessor)


def _refuse_beams(module: Any) -> None:
    from xshare.engines.vllm.protection import refuse_beams

    refuse_beams(module)


def _raise_refusals(module: Any) -> None:
    from xshare.engines.vllm.control import raise_refusals

    raise_refusals(module.LLMEngine)


def _answer_refusals(module: Any) -> None:
    from xshare.engines.vllm.control import answer_refusals

    answer_refusals(module.AsyncLLM)


def _add_load_format(module: Any) -> None:
    from xshare.engines.vllm.dummy_weights import register_dummy_loader

    register_dummy_loader()


HOOKS: dict[str, Callable[[Any], None]] = {
    "vllm.v1.worker.gpu_model_runner": _after_loading(v2=False),
    "vllm.v1.worker.cpu_model_runner": _after_loading(v2=False, name="CPUModelRunner"),
    "vllm.v1.worker.gpu.model_runner": _after_loading(v2=True),
    "vllm.v1.worker.worker_base": _add_worker_methods,
    "vllm.v1.engine.core": _wrap_core,
    "vllm.v1.engine.llm_engine": _raise_refusals,
    "vllm.v1.engine.async_llm": _answer_refusals,
    "vllm.v1.engine.input_processor": _refuse_requests,
    "vllm.entrypoints.openai.completion.protocol": _refuse_beams,
    "vllm.entrypoints.openai.chat_completion.protocol": _refuse_beams,
    "vllm.entrypoints.speech_to_text.transcription.protocol": _refuse_beams,
    "vllm.entrypoints.speech_to_text.translation.protocol": _refuse_beams,
    "vllm.engine.arg_utils": _check_early,
    "vllm.model_executor.model_loader": _add_load_format,
}
