"""Routing traces: the file, its import, and replay of any policy on it."""

from xshare.trace.file import Header, Trace
from xshare.trace.npz import import_npz
from xshare.trace.overlap import overlap
from xshare.trace.replay import Replayed, replay
from xshare.trace.sample import Batches, one_pass, sampled

__all__ = ["Batches", "Header", "Replayed", "Trace", "import_npz", "one_pass", "overlap", "replay", "sampled"]
