"""Routing traces: the file, its import, and replay of any policy on it."""

from xshare.trace.batches import Batches, one_pass, sampled
from xshare.trace.file import Header, Trace
from xshare.trace.numpy_import import import_npz
from xshare.trace.overlap import overlap
from xshare.trace.replay import Replayed, replay

__all__ = ["Batches", "Header", "Replayed", "Trace", "import_npz", "one_pass", "overlap", "replay", "sampled"]
