"""Worker processes keep something of their own, tell how far they are, and do not outlive who started them."""

import os
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest

from xshare.workers import Workers


class Counter:
    """Something of a worker's own."""

    def __init__(self, advance):
        self.advance, self.calls = advance, 0

    def add(self, a, b):
        self.calls += 1
        self.advance(1)
        return a + b, self.calls, os.getpid()

    def fail(self):
        raise ValueError("no")


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_call_is_answered_once_and_counted_and_what_one_raises_is_raised_here(jobs):
    workers, counts = Workers(Counter, jobs), []
    workers.tell(counts.append)
    results = dict(workers.run(((a, b), Counter.add, (a, b)) for a, b in product(range(3), range(4))))
    with pytest.raises(ValueError, match="no"):
        list(workers.run(iter([("a", Counter.fail, ())])))
    workers.close()
    assert {name: result[0] for name, result in results.items()} == {(a, b): a + b for a in range(3) for b in range(4)}
    assert sum(counts) == 12
    processes = {pid for _, _, pid in results.values()}
    assert len(processes) <= jobs
    assert (os.getpid() in processes) == (jobs == 1)
    assert max(calls for _, calls, _ in results.values()) >= 12 // jobs  # it is made once, and kept


def refuse(advance):
    raise ValueError("nothing to work with")


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_cannot_be_made_is_told(jobs):
    workers = Workers(refuse, jobs)
    with pytest.raises(ValueError, match="nothing to work with"):
        list(workers.run(iter([("a", Counter.add, (1, 2))])))
    workers.close()


def test_the_only_job_keeps_what_it_made():
    workers = Workers(Counter, 1)
    calls = [result[1] for _ in range(2) for _, result in workers.run(iter([("a", Counter.add, (1, 2))]))]
    assert calls == [1, 2]


PROGRAM = """
import sys, time
sys.path.insert(0, sys.argv[1])
from test_workers import Sleeper
from xshare.workers import Workers
if __name__ == "__main__":
    list(Workers(Sleeper, 2).run((i, Sleeper.sleep, ()) for i in range(2)))
"""


class Sleeper:
    def __init__(self, advance):
        os.write(1, f"{os.getpid()}\n".encode())  # in one piece: two workers print at once

    def sleep(self):
        time.sleep(600)


def test_workers_end_with_their_parent_even_if_it_is_killed(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    folder = str(Path(__file__).parent)
    command = [sys.executable, str(tmp_path / "program.py"), folder]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": folder}
    ) as parent:
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 20
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < until, "a worker is still there"
        time.sleep(0.1)


def test_ctrl_c_ends_them_at_once_and_none_of_them_complains(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    folder = str(Path(__file__).parent)
    paths = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(tmp_path / "program.py"), folder]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}, **pipes) as parent:
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal does it: to all of them
        _, errors = parent.communicate(timeout=30)
    assert not any(alive(pid) for pid in workers)
    assert errors.count("Traceback") == errors.count("KeyboardInterrupt") == 1, errors  # the parent's own


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
