"""Data-parallel ranks, each an engine in a process of its own, forked from this one: what each does is a function."""

from __future__ import annotations

import multiprocessing
import os
import queue
import socket
import sys
import time
import traceback
from pathlib import Path

import torch


def run_ranks(count, work, *arguments, seconds=200, leaving=()):
    """-> what `work(rank, *arguments)` returns on each rank. Fails, and ends them all, after `seconds`. Those in
    `leaving` are not waited for, and return None."""
    sys.path.insert(0, str(Path(__file__).parent))
    import vllm.entrypoints.llm  # noqa: F401  (once, and not in every process)
    from tiny_vllm_models import prepared

    prepared()
    torch._C.set_num_threads(1)  # a fork waits for ever for threads that this process had
    forks = multiprocessing.get_context("fork")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers = forks.Queue()
    ranks = [forks.Process(target=_rank, args=(rank, count, port, answers, work, arguments)) for rank in range(count)]
    for rank in ranks:
        rank.start()
    results, end = {}, time.monotonic() + seconds
    try:
        while len(results) < count - len(leaving):
            try:
                rank, ok, value = answers.get(timeout=1)
            except queue.Empty:
                assert time.monotonic() < end, f"after {seconds} s only ranks {sorted(results)} had done their work"
                dead = [number for number, process in enumerate(ranks) if process.exitcode and number not in results]
                assert not dead, f"ranks {dead} have died"
                continue
            assert ok, f"rank {rank}: {value}"
            results[rank] = value
    finally:
        for process in ranks:
            process.join(10 if len(results) == count - len(leaving) else 0)
            if process.is_alive():
                process.kill()
    return [results.get(rank) for rank in range(count)]


def _rank(rank, count, port, answers, work, arguments):
    names = {"RANK": rank, "RANK_LOCAL": rank, "SIZE": count, "MASTER_IP": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {f"VLLM_DP_{name}": str(value) for name, value in names.items()}
    try:
        import collectives  # noqa: F401

        with torch._dynamo.config.patch(disable=True):
            answers.put((rank, True, work(rank, *arguments)))
    except BaseException:
        answers.put((rank, False, traceback.format_exc()))
    answers.close()
    answers.join_thread()
    os._exit(0)
