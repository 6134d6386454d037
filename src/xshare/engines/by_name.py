"""Engines by name, as every command that measures takes them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from xshare import models
from xshare.engines.base import Engine
from xshare.engines.client import Access
from xshare.errors import ModelError, XShareError, short_repr
from xshare.files import is_file
from xshare.models.loading import load
from xshare.policy import Policy
from xshare.staircase import read_stairs

NAMES = ("transformers", "vllm")


def default_engine() -> str:
    """The one that runs here without further settings: vLLM where it is installed and has a GPU."""
    import torch

    return "vllm" if find_spec("vllm") is not None and torch.cuda.is_available() else "transformers"


def open_engine(
    kind: str,
    model: str | None = None,
    *,
    drafts: int = 0,
    policies: Sequence[Policy] = (),
    options: Mapping[str, Any] | None = None,
    cost: Path | None = None,
    access: Access | None = None,
) -> Engine:
    """`transformers`, `vllm`, or the address of a server.

    model     a folder, or a model in the box; of a server, the name of one of its models
    drafts    drafted tokens per request and step
    policies  those that will be used: vLLM compiles selection for them from the start; for any, where there are none
    options   device and dtype, and arguments of the engine's own: vLLM's LLM; the draft model's folder, lanes (batches
              that go through one pass) and devices (over which experts are taken to be spread, for policies with mg)
              for Transformers. A server takes its timeout alone
    cost      a staircase's file, by which sets are weighed; a server must have been started with the same
    access    a server's key and certificate
    """
    options = dict(options or {})
    stairs = None if cost is None else read_stairs(cost)
    if kind.startswith(("http://", "https://")):
        from xshare.engines.server import ServerEngine

        _check(options, ("timeout",), "a server")
        if drafts:
            raise ModelError("a server drafts as it was started to: leave drafts out")
        return ServerEngine(kind, model, **options, stairs=stairs, access=access)
    if kind not in NAMES:
        raise ModelError(
            f"engine {kind!r} is not known: expected {', '.join(NAMES)} or the http:// address of a server"
        )
    name = model or "nano"
    folder = models.folder(name) if name in models.NAMES else Path(name)
    if name in models.NAMES:
        models.check_files(folder)
    if kind == "vllm":
        from xshare.engines.vllm.engine import VllmEngine

        if others := [policy for policy in policies if policy.method != "xshare"]:
            raise ModelError(f"vLLM runs XShare's own policies, not {others[0]}: take the transformers engine for it")
        if not is_file(folder / "config.json"):
            raise ModelError(f"model {short_repr(name, 300)} is no folder of a model: it has no config.json")
        engine: Engine = VllmEngine(folder, name, drafts=drafts, policies=policies, options=options, cost=cost)
        engine.about.files = mark(folder)
        return _tried(engine, policies)
    from xshare.engines.transformers.engine import TransformersEngine

    _check(options, ("device", "dtype", "draft", "lanes", "devices"), "transformers")
    lanes = _count(options.pop("lanes", 1), "lanes, the batches that go through one pass,")
    devices = options.pop("devices", None)
    if devices is not None:
        devices = _count(devices, "devices, over which the experts are taken to be spread,")
    draft = options.pop("draft", "nano-draft" if name == "nano" else None)
    if drafts and draft is None:
        raise ModelError(
            "the transformers engine drafts nothing without a draft model: name its folder as the engine's argument "
            "draft, or take the vllm engine"
        )
    options = ({"dtype": "float32"} if name in models.NAMES else {}) | options
    drafter = load(_draft_folder(draft), **options)[0] if drafts else None
    opened = TransformersEngine(*load(folder, **options), name, drafter, drafts, lanes, stairs, devices)
    opened.about.files = mark(folder)
    if drafts:
        opened.about.drafter, opened.about.drafter_files = draft, mark(_draft_folder(draft))
    return _tried(opened, policies)


def moe_backends() -> list[str]:
    """Kernels for experts that vLLM may be asked for: values of its argument moe_backend."""
    from xshare.engines.vllm.backends import moe_backends as vllm_moe_backends

    return vllm_moe_backends()


def open_large(texts: Sequence[str], steps: int, **size: int) -> Engine:
    """A model with random weights, whose experts fit no cache and which routes as nano does: see its file."""
    from xshare.engines.transformers.large_random_model import large_engine

    return large_engine(texts, steps, **size)


def _count(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{what} must be a whole number from 1 up, not {value!r}")
    return value


def _tried(engine: Engine, policies: Sequence[Policy]) -> Engine:
    """What the engine refuses, it refuses now, and not after native's answers."""
    try:
        for policy in (*policies, None):
            engine.use(policy)
    except XShareError:
        engine.close()
        raise
    return engine


def _draft_folder(name: str) -> Path:
    if name not in models.NAMES:
        return Path(name)
    models.check_files(models.folder(name))
    return models.folder(name)


def mark(folder: Path) -> str:
    """What tells a folder's weights from others of the same form, without reading them."""
    files = sorted(folder.glob("*.safetensors"))
    facts = [f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    sums = folder / models.SUMS
    return hashlib.sha256((sums.read_text() if sums.is_file() else "\n".join(facts)).encode()).hexdigest()[:16]


def _check(options: Mapping[str, Any], known: Sequence[str], owner: str) -> None:
    if unknown := [name for name in options if name not in known]:
        raise ModelError(f"{unknown[0]!r} is no argument of {owner}: it takes {' and '.join(known)}")
