"""Import of traces as NumPy arrays: `experts` and `weights` [tokens, layers, k], `lengths`, `domain`, `category`."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xshare.errors import RouterError, TraceError
from xshare.files import is_file, quoted_path
from xshare.results import provenance, sha256
from xshare.router import RouterSpec
from xshare.trace.compressed import MOST_BYTES
from xshare.trace.file import Header, RouterFields, Trace, narrow_ids


def import_npz(path: Path, model: str | None = None, num_experts: int | None = None) -> Trace:
    """The trace in an .npz file. The model's name (by default the file's) gives the router if the model is known."""
    arrays = _read(path)
    model = model or path.stem
    experts = torch.from_numpy(arrays["experts"].astype(np.int64))
    weights = torch.from_numpy(arrays["weights"].astype(np.float32))
    if experts.ndim != 3 or weights.shape != experts.shape or experts.numel() == 0:
        raise TraceError(
            f"{str(path)!r}: experts and weights must both be [tokens, layers, k] and not empty, "
            f"not {list(experts.shape)} and {list(weights.shape)}"
        )
    router = _router(model, num_experts, top_k=experts.shape[-1])
    assert router.num_experts is not None
    if router.scoring == "softmax":  # best first. With a correction bias weights give no order: the file's order stays
        weights, order = weights.sort(dim=-1, descending=True, stable=True)
        experts = experts.gather(-1, order)
    lengths = torch.from_numpy(arrays["lengths"].astype(np.int64))
    header = Header(
        model=model,
        num_experts=router.num_experts,
        top_k=experts.shape[-1],
        score="topk",
        router=RouterFields.of(router),
        layers=list(range(experts.shape[1])),
        domains=_labels(arrays, "domain", len(lengths)) or ["unlabelled"] * len(lengths),
        categories=_labels(arrays, "category", len(lengths)),
        provenance=provenance() | {"source": path.name, "source_sha256": sha256(path)},
    )
    try:
        return Trace(header, lengths, narrow_ids(experts, header.num_experts), weights.half())
    except TraceError as error:
        raise TraceError(f"{str(path)!r} is inconsistent: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    if not is_file(path):
        raise TraceError(f"{quoted_path(path)} does not exist or is not a file")
    try:
        check_size(path)
        file = np.load(path, allow_pickle=False)
        arrays = {name: file[name] for name in file.files} if isinstance(file, np.lib.npyio.NpzFile) else {}
    except TraceError:
        raise
    except Exception as error:  # a damaged file can raise almost any error in zip or NumPy
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "pickle" in reason:  # NumPy's message explains how to unpickle, which would run code from the file
            reason = (
                "it is another kind of file or holds Python objects, expected numbers and text as savez writes them"
            )
        raise TraceError(f"{str(path)!r} is not a whole .npz file of plain arrays: {reason}") from None
    for name, kinds, dimensions in (("experts", "iu", 3), ("weights", "f", 3), ("lengths", "iu", 1)):
        array = arrays.get(name)
        if not isinstance(array, np.ndarray):
            got = ", ".join(arrays) or "none"
            raise TraceError(f"{str(path)!r} has no array {name!r}: expected experts, weights and lengths, found {got}")
        if array.dtype.kind not in kinds or array.ndim != dimensions:
            kind = "floating-point" if kinds == "f" else "whole"
            got = f"{array.dtype} with {array.ndim}"
            raise TraceError(f"{str(path)!r}: {name} must be {kind} numbers with {dimensions} dimensions, not {got}")
    return arrays


def check_size(path: Path) -> None:
    """Refuse a file that expands to more than MOST_BYTES. A file that is not a zip file fails later, in np.load."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as file:
        size = sum(member.file_size for member in file.infolist())
    if size > MOST_BYTES:
        raise TraceError(
            f"{str(path)!r} unpacks to {size / 2**30:.1f} GiB, expected at most {MOST_BYTES / 2**30:g} GiB"
        )


def _router(model: str, num_experts: int | None, top_k: int) -> RouterSpec:
    try:
        known = RouterSpec.for_model(model)
    except RouterError:
        if num_experts is None:
            raise TraceError(
                f"model {model!r} is not a known one: say --experts, how many experts a layer has"
            ) from None
        return RouterSpec.softmax(top_k, num_experts=num_experts)
    if known.top_k != top_k or num_experts not in (None, known.num_experts):
        got = f"{num_experts or known.num_experts} experts, top-{top_k}"
        raise TraceError(f"{model} has {known.num_experts} experts, top-{known.top_k}, and the file says {got}")
    return known


def _labels(arrays: dict[str, Any], name: str, sequences: int) -> list[str]:
    if name not in arrays:
        return []
    if arrays[name].shape != (sequences,):
        raise TraceError(f"{name} must hold one label for each of {sequences} sequences, not {arrays[name].shape}")
    return [str(label) for label in arrays[name]]
