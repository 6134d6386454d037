"""Staircase files as `xshare doctor --stairs` writes them, for engines that read one."""

import json

EDGES = {4: (6, 11, 16), 8: (7, 12, 20), 16: (9, 14, 24)}  # by rows of a step: where stairs end


def times(sizes, edges):
    """Flat up to an edge, and a millisecond more behind it."""
    return {size: 10 + sum(size > edge for edge in edges) + 0.01 * size for size in sizes}


def write(path, where, edges=None):
    """A file whose stairs end at `edges`, for an engine that is `where` (names of stairs.WHERE)."""
    experts = where["experts"]
    sizes = range(where["top_k"], experts + 1)
    rows = []
    for batch, ends in (edges or EDGES).items():
        for size, ms in times(sizes, ends).items():
            spread = {"ms": ms, "ms_low": ms - 0.01, "ms_high": ms + 0.01}
            rows.append({"batch": batch, "experts": size, **spread, "backend": None, "layers": where["layers"]})
    path.write_text(json.dumps({"format": 2, "provenance": where, "rows": rows}))
    return path
