"""A command in a process of its own, killed as soon as its result file is as far as a test wants it."""

import json
import signal
import subprocess
import sys
import time


def killed(words, path, far_enough):
    """-> what the file holds then. `far_enough` is asked about its contents."""
    running = subprocess.Popen(
        [sys.executable, "-m", "xshare", *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    end = time.monotonic() + 180
    while time.monotonic() < end and running.poll() is None:
        if path.exists() and far_enough(json.loads(path.read_text())):
            break
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    said = running.communicate()[1].decode()
    assert path.exists(), said
    return json.loads(path.read_text())
