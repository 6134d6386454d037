"""vLLM engines in processes of their own: the speed benchmarks tell them what to decode.

`python -m lib.engine_process OPTIONS` is such a process. Its engine has random weights (`xshare_dummy`). It reads
requests from its input, one line of JSON each, and answers each with a line that begins with RESULT.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

from lib.paths import python_path

PROMPT = 8  # tokens of a prompt: a batch of 32 is prefilled in one step
ACCEPTED = 2.5  # tokens per step and request with drafts, the target's own token included
EVERY = 29  # experts are counted in one step of this many: no divisor of a decode's length
COPIED = 1024  # MB, to measure bandwidth
DRAFTERS = ("none", "fixed", "eagle3")
# For an engine on a CPU, unless the environment overrides it: tiny models gain nothing from threads.
ON_CPU = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


class Engine:
    """The parent's end. `options`: tiny, layers, weights, drafter, drafts, sizes (of captured graphs), and

    shape        a key of model_shapes.SHAPES; gpt-oss-120b by default
    offload      GB of experts in host memory
    every        steps from one in which experts are counted to the next
    compilation  further settings of vLLM's compilation_config
    length       tokens of a request at most; chunk: prefilled tokens per step; cache: bytes for keys and values
    runner       V1 or V2, vLLM's model runner; a machine without a GPU has V1 only
    rule         None (unmodified vLLM, the plugin is not loaded), "xshare" (with `xshare`, the plugin's key, or None:
                 no key) or "logit-sum" (pull request 35551 with a budget of `budget`)
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.log = Path(tempfile.gettempdir(), f"engine_{name}.log")
        environment = (ON_CPU if options["tiny"] else {}) | os.environ
        environment["PYTHONPATH"] = python_path()
        environment["VLLM_USE_V2_MODEL_RUNNER"] = str(int(options["runner"] == "V2" and not options["tiny"]))
        if options["rule"] != "xshare":
            environment["VLLM_PLUGINS"] = ""
        with self.log.open("w") as log:
            command = [sys.executable, "-P", "-m", "lib.engine_process", json.dumps(options)]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, text=True, bufsize=1, env=environment
            )

    def ask(self, what: str, **how: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"what": what, **how}) + "\n")
        return self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("RESULT "):
                return json.loads(line.removeprefix("RESULT "))
        print("\n".join(self.log.read_text(errors="replace").splitlines()[-25:]), file=sys.stderr)
        raise SystemExit(f"an engine ended with code {self.process.wait()}; its log is {self.log}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()


class Child:
    """The engine in its process. Its methods are the words that Engine.ask sends."""

    def __init__(self, options: dict[str, Any]) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine core runs in this process, so a step is a call
        os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"
        self.options = options
        self.pruning: list[Any] = []
        if options["rule"] == "logit-sum":
            from lib.pull_request_35551 import install

            self.pruning = install(options["budget"])
        if options["rule"] != "xshare":  # it loads the same dummy weights
            from xshare.engines.vllm.dummy_weights import register_dummy_loader

            register_dummy_loader()
        from vllm import LLM

        if not options["tiny"]:
            load_alone()
        with tempfile.TemporaryDirectory() as folder:
            self.llm: Any = LLM(**arguments(options, Path(folder)))
        self.before: dict[str, Any] = {}
        self.begun = 0  # requests begun so far
        self.running: tuple[int, int, int] | None = None  # batch, seed and prompt tokens of the running requests
        self.have: dict[str, int] = {}  # tokens decoded, by request id
        gc.collect()
        gc.freeze()  # objects made so far stay: collecting them before every decode takes longer than a step

    def about(self) -> dict[str, Any]:
        """The conditions of the measurement that the engine knows: versions, runner, GPU, graphs, kernels."""
        import torch
        import vllm

        config = self.llm.llm_engine.vllm_config
        experts = self.llm.apply_model(lambda model: [m for m in model.modules() if hasattr(m, "routed_experts")])[0]
        method = experts[0].routed_experts.quant_method
        return {
            "vllm": vllm.__version__,
            "runner": "V2" if config.use_v2_model_runner else "V1",
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "graphs": str(config.compilation_config.cudagraph_mode),
            "experts_by": f"{type(method).__name__} {getattr(method, 'mxfp4_backend', '')}".strip(),
        } | self.routed()

    def routed(self) -> dict[str, Any]:
        """With selection: how many layers are routed in its own launch. Empty without."""
        if not self.options.get("xshare"):
            return {}
        return {"routed_layers": self.llm.collective_rpc("xshare_stats")[0]["routed_layers"]}

    def policy(self, policy: str) -> None:
        """Change the policy from the next step on, or switch to native; `counted` counts from here."""
        if policy != "native":
            self.llm.collective_rpc("xshare_set", args=(policy,))
        self.llm.collective_rpc("xshare_switch", args=(policy != "native",))
        self.before = self.llm.collective_rpc("xshare_stats")[0]

    def cost(self, on: bool) -> None:
        """Whether sets follow the staircase that the engine was started with. Set the policy afterwards."""
        self.llm.collective_rpc("xshare_cost", args=(on,))

    def counted(self, batch: int) -> dict[str, Any]:
        """Counts since the last change of policy.

        samples  steps sampled; active, native, mass: their means over all layers, of experts and of the votes kept
        pruned   steps that selection acted on; decoded: those that it should act on, in which all requests decode
        """
        if self.pruning:  # it knows the last step only
            active = [layer.active(batch, 4) for layer in self.pruning]
            return {"samples": 1, "active": sum(active) / len(active), "native": None}
        from xshare.engines.counters import since

        now = since(self.before, self.llm.collective_rpc("xshare_stats")[0])
        left = sum(count for reason, count in now.steps_bypassed.items() if reason != "prefill")
        return {
            "samples": now.samples,
            "active": now.mean.get("experts_active"),
            "native": now.mean.get("experts_native"),
            "mass": now.mean.get("mass_kept"),
            "pruned": now.steps_pruned,
            "decoded": now.steps_pruned + left,
        }

    def host_layers(self) -> int:
        layers: int = self.llm.collective_rpc("xshare_stats")[0]["host_layers"]
        return layers

    def bus(self) -> float | None:
        """GB per second at which the GPU reads host memory; None without a GPU."""
        import torch

        from xshare.tune.doctor import bus_gbps

        return bus_gbps(COPIED) if torch.cuda.is_available() else None

    def weights(self, weights: dict[str, float]) -> int:
        from xshare.engines.vllm.dummy_weights import refill

        routers: int = self.llm.collective_rpc(refill, args=(weights,))[0]
        return routers

    def bandwidth(self) -> float | None:
        """Bytes per second that the GPU reads and writes in a plain copy; None without a GPU."""
        import torch

        from xshare.tune.doctor import copy_gbps

        if not torch.cuda.is_available():
            return None
        bytes_per_second = copy_gbps("cuda", COPIED) * 1e9
        torch.cuda.empty_cache()  # two engines share the memory of one GPU
        return bytes_per_second

    def decode(
        self, batch: int, steps: int, seed: int, prompt: int = PROMPT, warm: int = 0, counted: int = 0, most: int = 0
    ) -> dict[str, float]:
        """Time `steps` decode steps of a batch -> seconds, tokens, steps; `short`: steps that lacked a request;
        `middle`: seconds of the median step, which shows whether a slow decode was slow throughout.

        prompt   tokens of a prompt; all prompts are prefilled before the clock starts
        warm     steps before the clock starts, in addition to the one that always comes first
        counted  steps before those, in each of which experts are counted
        most     max_tokens of a request. With it the requests stay, and the next call with the same batch, seed and
                 prompt continues them: prefilling long prompts takes longer than the measurement
        """
        requests = batch, seed, prompt
        if self.running != requests:
            self.end()
            # no request may end before the clock stops
            self.begin(batch, seed, prompt, most or (steps + warm + counted + 8) * (1 + self.options["drafts"]))
            self.running = requests
        if counted:
            self.llm.collective_rpc("xshare_count", args=(1,))
            self.go(counted)
            self.llm.collective_rpc("xshare_count", args=(None,))
        timing = self.go(steps, warm)
        if not most:
            self.end()
        return timing

    def profile(self, batch: int, steps: int, warm: int) -> dict[str, list[float]]:
        """Launches and microseconds of every kernel of `steps` decode steps; without a GPU, of every operator."""
        import torch

        on_gpu = torch.cuda.is_available()
        kind = torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU
        self.end()
        self.begin(batch, 1, PROMPT, (steps + warm + 16) * (1 + self.options["drafts"]))
        self.running = batch, 1, PROMPT
        self.go(warm)
        kernels: dict[str, list[float]] = {}
        # Less a run of fewer steps: with asynchronous scheduling both end with a step that no one has asked for.
        for sign, timed in ((-1, 1), (1, 1 + steps)):
            if on_gpu:
                torch.cuda.synchronize()
            with torch.profiler.profile(activities=[kind]) as profile:
                self.go(timed)
                if on_gpu:
                    torch.cuda.synchronize()
            for event in profile.events():
                if str(event.device_type).endswith(kind.name):
                    total = kernels.setdefault(event.name, [0, 0.0])
                    total[0] += sign
                    total[1] += sign * (event.device_time if on_gpu else event.cpu_time)
        self.end()
        return kernels

    def begin(self, batch: int, seed: int, prompt: int, most: int) -> None:
        from vllm import SamplingParams

        from xshare.engines.vllm.dummy_weights import BLOCK

        engine, dice = self.llm.llm_engine, random.Random(seed)
        vocab = engine.model_config.get_vocab_size()
        blocks = dice.sample(range(vocab // BLOCK), vocab // BLOCK)  # one block per request: their tastes differ
        params = SamplingParams(temperature=1.0, max_tokens=most, ignore_eos=True, detokenize=False)
        for number in range(batch):
            tokens = [dice.randrange(vocab) for _ in range(prompt - 1)]
            tokens.append(blocks[number % len(blocks)] * BLOCK + dice.randrange(BLOCK))
            self.begun += 1
            engine.add_request(str(self.begun), {"prompt_token_ids": tokens}, params)
        self.have = {}
        while len(self.have) < batch:
            self.step()

    def step(self) -> int:
        """How many requests got tokens. With asynchronous scheduling a call may return before any did."""
        outputs = self.llm.llm_engine.step()
        self.have |= {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
        return len(outputs)

    def go(self, steps: int, warm: int = 0) -> dict[str, float]:
        """Time steps. The clock starts at the end of a step: with asynchronous scheduling one may be under way."""
        ends: list[float] = []
        at_begin, short = 0, 0
        gc.collect()
        gc.disable()  # in both engines: a collection takes as long as several steps
        while len(ends) <= warm + steps:
            brought = self.step()
            if not brought:
                continue
            ends.append(time.perf_counter())
            if len(ends) <= warm + 1:
                at_begin = sum(self.have.values())
            else:
                short += brought < len(self.have)
        gc.enable()
        ends = ends[warm:]
        timing = {"seconds": ends[-1] - ends[0], "middle": median(b - a for a, b in pairwise(ends)), "steps": steps}
        return timing | {"tokens": sum(self.have.values()) - at_begin, "short": short}

    def end(self) -> None:
        if self.running is None:
            return
        self.running = None
        self.llm.llm_engine.abort_request(list(self.have))
        for _ in range(4):  # steps scheduled ahead still run, and must be over when the policy changes
            self.llm.llm_engine.step()


def load_alone() -> None:
    """Let one engine at a time load its model: with 36 layers loading took 82 GiB, of which 62 stay."""
    import torch
    from vllm.v1.worker.gpu_worker import Worker

    native = Worker.load_model

    def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
        with Path(tempfile.gettempdir(), f"engine_loads_{os.getuid()}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
            native(self, *args, **kwargs)
            torch.cuda.empty_cache()

    Worker.load_model = load_model


def arguments(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The arguments of vLLM's LLM."""
    from lib.model_shapes import SHAPES, eagle3_head, write

    tiny, drafts = options["tiny"], options["drafts"]
    shape = SHAPES[options.get("shape", "gpt-oss-120b")](options["layers"], tiny)
    llm_options: dict[str, Any] = {
        "model": str(write(shape, folder / "target")),
        "load_format": "xshare_dummy",
        "model_loader_extra_config": options["weights"],
        "skip_tokenizer_init": True,
        "max_model_len": options.get("length", 1024),
        "max_num_seqs": 64,
        "max_num_batched_tokens": options.get("chunk", 512),  # two engines share the memory of one GPU
        "gpu_memory_utilization": 0.1,  # what must be free at the start: the other engine may have loaded
        "kv_cache_memory_bytes": options.get("cache", 1 << (26 if tiny else 30)),
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "seed": 0,
    }
    llm_options |= {"dtype": "float32", "enforce_eager": True} if tiny else {}
    if not tiny:
        llm_options["compilation_config"] = {"cudagraph_capture_sizes": options["sizes"]} | options.get(
            "compilation", {}
        )
    if options.get("offload") and not tiny:
        llm_options |= {"cpu_offload_gb": options["offload"], "cpu_offload_params": ["experts"]}
    if drafts:
        drafter = {"method": "custom_class", "model": "xshare.engines.vllm.drafter.FixedDrafter"}
        if options["drafter"] == "eagle3":
            drafter = {"method": "eagle3", "model": str(write(eagle3_head(shape), folder / "eagle3"))}
        # vLLM has synthetic acceptance on GPUs only.
        accepted = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": ACCEPTED}
        llm_options["speculative_config"] = drafter | {"num_speculative_tokens": drafts} | ({} if tiny else accepted)
    if options.get("xshare") is not None:
        llm_options["additional_config"] = {
            "xshare": options["xshare"] | {"metrics": {"every": options.get("every", 3 if tiny else EVERY)}}
        }
    return llm_options


def serve(options: dict[str, Any]) -> None:
    child = Child(options)
    print("RESULT " + json.dumps(child.about()), flush=True)
    for line in sys.stdin:  # it ends when the parent does
        request = json.loads(line)
        answer = getattr(child, request.pop("what"))(**request)
        print("RESULT " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
