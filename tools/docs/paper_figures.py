"""The paper's figures that stand in no result file, as it prints them: changes of accuracy, and mixed requests.

Its gains in speed without mixing are in paper_speed.json, as `paper_low` and `paper_high`.
"""

from __future__ import annotations

# Points of accuracy by data set: without drafts AIME2025, GPQA, MMLU-Pro, with drafts AIME2025, GPQA, AALCR.
POINTS = {
    "k0=1,m=0": (-10.83, -1.01, -1.54),
    "k0=1,m=24": (-0.83, -1.01, -0.57),
    "k0=2,m=12": (2.50, 1.52, 0.11),
}
POINTS_DRAFTED = {
    "k0=0,m=16,mr=4": (-22.50, -4.67, -19.61),
    "k0=1,m=0,mr=4": (4.17, 0.51, -5.61),
    "k0=1,m=0,mr=5": (0.00, 2.02, -0.36),
    "k0=2,m=0,mr=4": (-0.83, 1.64, -0.36),
}
# In batches of mixed requests, of AIME2025 and GPQA: gains in speed in percent, and points of accuracy. That table
# heads the first column (0,4,16), where the other has (0,16,4).
GAINS_MIXED = {
    "k0=0,m=16,mr=4": (9.3, 10.9),
    "k0=1,m=0,mr=4": (12.8, 16.6),
    "k0=1,m=0,mr=5": (7.0, 11.7),
    "k0=2,m=0,mr=4": (11.2, 11.6),
    "k0=1,m=24": (1.7, 7.0),
    "k0=1,m=32": (1.8, 2.5),
    "k0=2,m=10": (5.6, 3.0),
    "k0=0,m=0,mr=8": (7.7, 9.9),
}
POINTS_MIXED = {
    "k0=0,m=16,mr=4": (-24.17, -5.55),
    "k0=1,m=0,mr=4": (2.50, -1.51),
    "k0=1,m=0,mr=5": (2.50, 1.01),
    "k0=2,m=0,mr=4": (-0.83, 1.01),
    "k0=1,m=24": (5.83, -3.03),
    "k0=1,m=32": (-0.83, 2.53),
    "k0=2,m=10": (5.83, 2.02),
    "k0=0,m=0,mr=8": (-0.83, 0.51),
}
TOLERANCE = -1.0  # points: the paper's tolerance is 1 %


def printed(points: tuple[float, ...]) -> str:
    return ", ".join(f"{value:+.2f}" if value else f"{value:.2f}" for value in points)


def least_points(points: tuple[float, ...]) -> float:
    """What answers must not fall below: the paper's tolerance, or its own worst data set where it lost more."""
    return min(TOLERANCE, *points)
