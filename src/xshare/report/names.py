"""Names beside the points of a plot, each where it covers as little as possible."""

from __future__ import annotations

from typing import Any

from xshare.report.inline import GREY

Spot = tuple[float, float]
# Where a name may stand beside its point, in typographic points, the nearest first.
PLACES = [(7, 0), (-7, 0)] + [
    (dx * far, dy * far) for far in (6, 14, 24, 36, 50) for dx, dy in ((1, 1), (-1, -1), (1, -1), (-1, 1))
]


def put_names(figure: Any, axes: Any, names: dict[Spot, str], lines: list[list[Spot]]) -> None:
    """Inside the axes, and clear of the other names and points and off the `lines` if there is such a place."""
    from matplotlib.path import Path
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()  # settles where the axes are
    on_paper = axes.transData.transform
    paths = [Path(on_paper(line)) for line in lines]
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in map(on_paper, names)]
    inside = axes.get_window_extent()

    def harm(box: Any) -> float:
        out = not (inside.x0 < box.x0 and box.x1 < inside.x1 and inside.y0 < box.y0 and box.y1 < inside.y1)
        crossed = sum(path.intersects_bbox(box, filled=False) for path in paths)
        return float(1000 * out + 2 * sum(box.overlaps(other) for other in taken) + crossed)

    for spot, name in names.items():
        note = axes.annotate(name, spot, textcoords="offset points", fontsize=9, va="center", in_layout=False)
        best = min(PLACES, key=lambda place: harm(_put(note, place, inside)))
        taken.append(_put(note, best, inside))
        if abs(best[1]) > 10:  # far enough away to need a thread to its point
            thread = {"arrowstyle": "-", "color": GREY, "lw": 0.6, "shrinkA": 0, "shrinkB": 3}
            axes.annotate("", spot, xytext=best, textcoords="offset points", arrowprops=thread, in_layout=False)


def _put(note: Any, place: Spot, inside: Any) -> Any:
    """-> the box that the name fills there. One that would stick out to a side is slid back over its point."""
    note.set(position=place, horizontalalignment="left" if place[0] > 0 else "right")
    box = note.get_window_extent()
    out = max(0, inside.x0 + 1 - box.x0) - max(0, box.x1 - inside.x1 + 1)
    if out and abs(place[1]) > 6:  # on the point's own height it would cover it
        note.set_x(place[0] + out * 72 / note.get_figure().dpi)
        box = note.get_window_extent()
    return box
