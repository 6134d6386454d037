"""Small result files of every form that the report knows."""

import json

from xshare.policy import RECOMMENDED, Policy

STAMP = {
    "argv": ["xshare", "demo"],
    "time": "2026-11-15T12:00:00+00:00",
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "machine": "Linux x86_64",
    "git": "0a43b46",
    "gpu": "NVIDIA H200",
    "model": "nano",
    "seed": 0,
}
POLICIES = [("native", 44.0, 0.94), ("k0=1,m=16", 30.0, 0.93), ("k0=1,m=0", 15.0, 0.80), ("topk:k=2", 31.0, 0.70)]

CAREFUL, BALANCED, FAST = (str(Policy.parse(name)) for name in RECOMMENDED)
SPEEDS = {CAREFUL: 1.1, BALANCED: 1.2, FAST: 1.4}
LOSSES = {CAREFUL: -0.001, BALANCED: -0.01, FAST: -0.05}


def write(folder, name, rows, **more):
    (folder / name).write_text(json.dumps({"format": 2, "provenance": STAMP | more, "rows": rows}))


def demo_rows():
    return [
        {"policy": policy, "active": active, "active_native": 44.0, "mass": accuracy, "accuracy": accuracy}
        | {"accuracy_low": accuracy - 0.05, "accuracy_high": accuracy + 0.04, "agreement": 0.5, "tokens_per_s": 950.0}
        for policy, active, accuracy in POLICIES
    ]


def replay_rows():
    return [
        {"policy": policy, "method": "xshare", "batch": 16, "layer": None, "active": active, "active_lo": active - 1}
        | {"active_hi": active + 1, "active_native": 44.0, "mass": mass, "top1_kept": 1.0}
        for policy, active, mass in POLICIES
    ]


def layer_rows():
    return [
        {"policy": policy, "layer": layer, "active": active + layer, "active_native": 44.0 + layer}
        | {"mass": mass, "top1_kept": 1.0}
        for policy, active, mass in POLICIES
        for layer in range(3)
    ]


def speed_rows(batches=(4, 16)):
    return [
        {"batch": batch, "drafts": 0, "policy": policy, "method": "plain" if policy == "native" else "xshare"}
        | {"step_ms": 3 + 0.1 * active + batch / 16, "ratio": 44 / active, "ratio_low": 43 / active}
        | {"ratio_high": 45 / active, "active": active, "active_native": 44.0, "predicted": None, "realised": 1.0}
        for batch in batches
        for policy, active, _ in [*POLICIES, ("k0=1,m=8", 20.0, 0.9)]
    ]


def quality_rows(batch=16):
    return [
        {"policy": policy, "batch": batch, "accuracy": accuracy, "kl": 1 - accuracy} for policy, _, accuracy in POLICIES
    ]


def curve_rows():
    return [
        {"policy": policy, "batch": batch, "active": 4.0 + batch, "closed_form": 5.0 + batch}
        for policy in ("native", "k0=1,m=6")
        for batch in (1, 2, 4)
    ]


def stairs_rows(batches=(4, 16), ends=(11, 16)):
    """Sets of 8 to 20 experts; beyond the ends a step takes 0.4 ms more."""
    times = {
        (batch, size): 3 + batch / 16 + 0.4 * sum(size > end for end in ends)
        for batch in batches
        for size in range(8, 21)
    }
    return [
        {"batch": batch, "experts": size, "ms": ms, "ms_low": ms - 0.01, "ms_high": ms + 0.01, "active": float(size)}
        | {"cost": size, "backend": "MarlinExperts", "layers": 24, "rounds": 12}
        for (batch, size), ms in times.items()
    ]


def one_of_each(folder):
    """A folder in which every section has something to show."""
    write(folder, "a.json", demo_rows())
    write(folder, "b.json", replay_rows() + layer_rows())
    write(folder, "c.json", speed_rows())
    write(folder, "d", curve_rows())  # no file is known by its name
    listed = [row | {"experts_active": [3, 5.5], "experts_native": [7, 8]} for row in demo_rows()]
    write(folder, "e.json", listed, batch=4)
    write(folder, "f.json", stairs_rows())


def timed(ratios, spread=0.01, **more):
    return [
        {"policy": policy, "method": "xshare", "batch": 16, "drafts": 0, "otps": 100 * ratio, "ratio": ratio}
        | {"ratio_low": ratio - spread, "ratio_high": ratio + spread, "active": 40 / ratio, "active_native": 40}
        | more
        for policy, ratio in ratios.items()
    ]


def answered(changes, spread=0.005, **more):
    return [
        {"policy": policy, "method": "xshare", "batch": 16, "drafts": 0, "accuracy": 0.9 + change, "change": change}
        | {"change_low": change - spread, "change_high": change + spread, "active": 30, "active_native": 40}
        | more
        for policy, change in changes.items()
    ]
