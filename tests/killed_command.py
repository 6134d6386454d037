"""A command in a process of its own, stopped as soon as its result file is as far as a test wants it."""

import json
import multiprocessing
import os
import signal
import sys
import time


def killed(words, path, far_enough):
    """-> what the file holds then. `far_enough` is asked about its contents."""
    return stopped(words, path, far_enough, signal.SIGKILL)[0]


def stopped(words, path, far_enough, by=signal.SIGINT):
    """-> what the file holds then, what was printed, and the exit code."""
    log = path.with_name("said.txt")
    # A fork: a new interpreter would take longer to import everything than to get that far.
    running = multiprocessing.get_context("fork").Process(target=run, args=([*map(str, words)], log))
    running.start()
    end = time.monotonic() + 180
    while time.monotonic() < end and running.is_alive():
        if path.exists() and far_enough(json.loads(path.read_text())):
            break
        time.sleep(0.02)
    if running.is_alive():
        os.kill(running.pid, by)
    running.join()
    assert path.exists(), log.read_text()
    return json.loads(path.read_text()), log.read_text(), running.exitcode


def run(words, log):
    """Run `xshare` with these words. What it prints goes to the file `log`, or to the terminal if `log` is None."""
    import torch

    from xshare.cli import main

    # Where the parent ever had more threads a fork waits for them, and where vLLM ran, it has replaced torch's own.
    torch._C.set_num_threads(1)
    if log is not None:
        with log.open("w") as out:
            for number in (1, 2):
                os.dup2(out.fileno(), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w") for number in (1, 2))
    sys.argv = ["xshare", *words]
    main()
