"""vLLM as an engine in this process, driven step by step, so that the time of every token is known."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from xshare.engines.base import NO_STAIRS, About, Answer, BeforeStep, Divergence, Run, StepTime, leaving
from xshare.engines.chat import Messages, chat_ids
from xshare.engines.counters import Stats, layer_numbers, over_workers, since
from xshare.engines.serving.compiled import start_fields
from xshare.errors import ModelError, XShareError
from xshare.policy import Policy
from xshare.profile import model_hash
from xshare.progress import Advance, quiet

FIXED_DRAFTER = {"method": "custom_class", "model": "xshare.engines.vllm.drafter.FixedDrafter"}
CPU_CACHE = 2 << 30  # bytes of keys and values
EVERY = 16  # experts are counted in one of so many steps: often enough for a short run
COUNTERS = ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens")


class VllmEngine:
    """`options`: arguments of vLLM's LLM. `policies`: those that `use` will set, for which selection is compiled; any,
    where there are none. `cost`: a staircase's file."""

    serves: Policy | None = None

    def __init__(
        self,
        model: Path,
        name: str = "",
        *,
        drafts: int = 0,
        policies: Sequence[Policy] = (),
        options: Mapping[str, Any] | None = None,
        cost: Path | None = None,
    ) -> None:
        # In process, a step is a call; and standard output is for results.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
        try:
            from vllm import LLM, __version__
            from vllm.platforms import current_platform
        except ImportError:
            raise ModelError("vllm is not installed: pip install 'xshare[vllm]'") from None
        arguments = for_device(llm_arguments(drafts, policies, options or {}, cost), current_platform.device_type)
        try:
            self.llm: Any = LLM(model=str(model), **arguments)
        except XShareError:
            raise
        except (TypeError, ValueError, RuntimeError, OSError, AssertionError) as error:
            reason = " ".join(line.strip() for line in str(error).splitlines()[:3]) or type(error).__name__
            if "memory-utilization" in reason.replace("_", "-"):
                reason += " (here: --engine-args '{\"gpu_memory_utilization\": 0.5}')"
            raise ModelError(f"vllm cannot serve {str(model)!r}: {reason}") from error
        self._runs, self._acts = 0, False
        self._before = self._read_stats()
        self.about = about(self.llm, name or str(model), __version__)
        self.about.experts, self.about.top_k = self._before["experts"], self._before["top_k"]
        self.about.layers, self.about.layer_numbers = len(self._before["layers"]), layer_numbers(self._before["layers"])
        self.about.expert_bytes = self._before["expert_bytes"]
        self.about.host_layers = self._before["host_layers"]
        self.about.backend = self._before["backend"]
        self.room: int | None = self.llm.llm_engine.model_config.max_model_len
        self.forces = not self.about.drafts
        self.use(None)

    def _read_stats(self) -> dict[str, Any]:
        return over_workers(self.llm.collective_rpc("xshare_stats"))

    def use(self, policy: Policy | None, timed: bool = False, cost: bool | None = None) -> None:
        if cost and self._before["stairs"] is None:
            raise ModelError(NO_STAIRS)
        if policy is not None:
            self.llm.collective_rpc("xshare_set", args=(str(policy),))  # may refuse; nothing has changed then
        self._acts = policy is not None
        self.llm.collective_rpc("xshare_switch", args=(self._acts,))
        if self._before["stairs"] is not None:
            self.llm.collective_rpc("xshare_cost", args=(cost is not False,))
        self._before = self._read_stats()

    def change(self, policy: Policy) -> None:
        if self.llm.llm_engine.vllm_config.cache_config.enable_prefix_caching:
            raise ModelError(
                "a policy cannot change between two steps with enable_prefix_caching, which has requests computed "
                "again: leave it off"
            )
        self.llm.collective_rpc("xshare_set", args=(str(policy),))

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        limit: int,
        batch: int,
        arrivals: Sequence[float] | None = None,
        to_the_end: bool = False,
        advance: Advance = quiet,
        before: BeforeStep | None = None,
        stop: Sequence[str] = (),
        protected: Collection[int] | None = None,
    ) -> Run:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        from xshare.engines.vllm.compilations import compilations
        from xshare.engines.vllm.protection import extra_args

        engine, due = self.llm.llm_engine, arrivals or [0.0] * len(prompts)
        if batch > (most := engine.vllm_config.scheduler_config.max_num_seqs):
            raise ModelError(f"this engine decodes {most} requests at once, not {batch}: raise its max_num_seqs")
        longest, room = max(map(len, prompts), default=0), engine.model_config.max_model_len
        if longest >= room:
            raise ModelError(f"a prompt of {longest} tokens does not fit this engine: its max_model_len is {room}")
        plain, exact, shared = (
            SamplingParams(
                temperature=0,
                max_tokens=limit,
                ignore_eos=to_the_end,
                stop=list(stop) or None,
                detokenize=bool(stop),
                output_kind=RequestOutputKind.DELTA,
                extra_args=extra_args(wants_protection),
            )
            for wants_protection in (None, True, False)
        )
        self._runs += 1
        run = Run([Answer([], "", arrived) for arrived in due])
        waiting = sorted(range(len(prompts)), key=lambda index: due[index])
        live: dict[str, int] = {}
        prefilling: set[str] = set()  # requests without a token yet
        drafts = self._draft_counters()
        taken = 0.0  # decode time since the last step that brought tokens
        start = time.perf_counter()
        with leaving(lambda _: self._finished_answers(run.answers, live)), compilations() as compiled:
            while waiting or live:
                began = time.perf_counter() - start
                arrived = [index for index in waiting[: batch - len(live)] if due[index] <= began]
                waiting = waiting[len(arrived) :]
                for index in arrived:
                    request = f"{self._runs}-{index}"
                    params = plain if protected is None else exact if index in protected else shared
                    engine.add_request(request, {"prompt_token_ids": list(prompts[index])}, params)
                    live[request] = index
                    prefilling.add(request)
                if not live:
                    time.sleep(max(0.0, due[waiting[0]] - began))
                    continue
                decodes_only, decoding = not prefilling, len(live)
                if decodes_only and before is not None:
                    before(run.steps)
                began = time.perf_counter() - start
                outputs = engine.step()
                now = time.perf_counter() - start
                rows = 0
                for output in outputs:
                    tokens = list(output.outputs[0].token_ids)
                    answer = run.answers[live[output.request_id]]
                    answer.tokens += tokens
                    answer.times_s += [now] * len(tokens)
                    rows += len(tokens)
                    if tokens:
                        prefilling.discard(output.request_id)
                    if output.finished:
                        del live[output.request_id]
                        advance(1)
                if decodes_only:
                    run.decode_s += now - began
                    taken += now - began
                    run.rows += rows
                    if rows:  # with asynchronous scheduling, a call may return before its tokens are there
                        run.steps += 1
                        run.timed.append(StepTime(taken, decoding))
                        taken = 0.0
        run.compiled = len(compiled)
        run.drafted, run.accepted = (b - a for a, b in zip(drafts, self._draft_counters(), strict=True))
        self._add_texts(run.answers)
        return run

    def diverge(
        self,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        batch: int,
        advance: Advance = quiet,
    ) -> Divergence:
        from xshare.engines.vllm.teacher_forcing import diverge

        if not self.forces:  # with drafts a request has several rows per step, and some of them are discarded
            raise ModelError("vLLM cannot be forced beside drafts: measure KL and perplexity without them")
        return diverge(self.llm, self._acts, prompts, answers, batch, advance)

    def _draft_counters(self) -> tuple[int, int]:
        """Tokens drafted and accepted so far."""
        if not self.about.drafts:
            return 0, 0
        metrics = self.llm.get_metrics()
        drafted, accepted = (sum(metric.value for metric in metrics if metric.name == name) for name in COUNTERS)
        return drafted, accepted

    def _add_texts(self, answers: list[Answer]) -> None:
        tokenizer = self._tokenizer()
        for answer in answers if tokenizer is not None else []:
            answer.text = tokenizer.decode(answer.tokens, skip_special_tokens=True)

    def _finished_answers(self, answers: list[Answer], live: Mapping[str, int]) -> list[Answer | None]:
        """The answers of an interrupted run: None for requests that were running or had not begun."""
        self._add_texts(answers)
        return [
            answer if answer.tokens and index not in live.values() else None for index, answer in enumerate(answers)
        ]

    def _tokenizer(self) -> Any:
        if self.llm.llm_engine.model_config.skip_tokenizer_init:
            return None
        return self.llm.get_tokenizer()

    def stats(self) -> Stats:
        return since(self._before, self._read_stats())

    def count_all(self, on: bool) -> None:
        self.llm.collective_rpc("xshare_count", args=(1 if on else None,))

    def encode(self, text: str) -> list[int]:
        tokenizer = self._tokenizer()
        if tokenizer is None:
            raise ModelError(
                "this engine was started with skip_tokenizer_init: it takes token ids alone (prompts random)"
            )
        ids: list[int] = tokenizer.encode(text)
        return ids

    def encode_chat(self, messages: Messages) -> list[int]:
        return chat_ids(self._tokenizer(), messages)

    def close(self) -> None:
        from vllm.distributed import cleanup_dist_env_and_memory

        del self.llm
        gc.collect()
        cleanup_dist_env_and_memory()


def llm_arguments(
    drafts: int, policies: Sequence[Policy], options: Mapping[str, Any], cost: Path | None = None
) -> dict[str, Any]:
    """The arguments of LLM: `options`, with selection that acts on every decode step."""
    # With bypasses off, selection is there at every size, so it follows any batch budget.
    settings = start_fields(policies) | {"gates": {"bypass": False}, "metrics": {"every": EVERY}}
    if cost is not None:
        settings["cost"] = str(cost.resolve())  # workers may run in another folder
    config = dict(options.get("additional_config", {}))
    config["xshare"] = settings | config.get("xshare", {})
    arguments: dict[str, Any] = {
        "enable_prefix_caching": False,  # a repeated prompt is prefilled again
        "seed": 0,
        **options,
        "additional_config": config,
    }
    speculative = dict(arguments.pop("speculative_config", None) or {})
    if drafts:
        drafter = {} if "method" in speculative or "model" in speculative else FIXED_DRAFTER
        speculative = drafter | speculative | {"num_speculative_tokens": drafts}
    if speculative:
        arguments["speculative_config"] = speculative
    arguments.setdefault("disable_log_stats", not speculative)  # vLLM counts drafts only if it logs statistics
    return arguments


def for_device(arguments: Mapping[str, Any], platform: str) -> dict[str, Any]:
    """The arguments of LLM without `device`, which must be vLLM's `platform`; with a small cache on a CPU."""
    arguments = dict(arguments)
    if (device := arguments.pop("device", platform)) != platform:
        hint = ", and which GPU by CUDA_VISIBLE_DEVICES" if platform == "cuda" else ""
        raise ModelError(f"vllm runs on {platform} here, not on {device!r}: leave the device out{hint}")
    sized = {
        "kv_cache_memory_bytes",
        "gpu_memory_utilization",
    } & arguments.keys() or "VLLM_CPU_KVCACHE_SPACE" in os.environ
    if platform == "cpu" and not sized:  # vLLM would claim nearly all memory, and not start where others use some
        arguments["kv_cache_memory_bytes"] = CPU_CACHE
    return arguments


def about(llm: Any, name: str, version: str) -> About:
    """The conditions of a measurement, as far as the engine's configuration has them."""
    from xshare.engines.vllm.staircase_conditions import device_name, dtype_name, processor

    config = llm.llm_engine.vllm_config
    speculative = config.speculative_config
    return About(
        engine="vllm",
        version=version,
        model=name,
        device=device_name(config),
        cpu=processor(config),
        dtype=dtype_name(config),
        weights=str(config.load_config.load_format),
        graphs="none"
        if config.model_config.enforce_eager
        else getattr(config.compilation_config.cudagraph_mode, "name", "none").lower(),
        tensor_parallel=config.parallel_config.tensor_parallel_size,
        expert_parallel=bool(config.parallel_config.enable_expert_parallel),
        max_num_seqs=config.scheduler_config.max_num_seqs,
        drafts=speculative.num_speculative_tokens if speculative is not None else 0,
        drafter=str(speculative.model or speculative.method) if speculative is not None else None,
        vocab=config.model_config.get_vocab_size(),
        config=model_hash(config.model_config.hf_text_config),
    )
