"""SGLang's real scheduler and model runner in this process, step by step; and what its routers really did.

A process has one such engine: SGLang's context, its groups of processes and its plugins are the process's own.
"""

import json
import os
from array import array
from dataclasses import dataclass, field

import torch

import xshare

# What SGLang needs to run on a CPU without its kernels.
ARGUMENTS = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_overlap_schedule": True,
    "disable_cuda_graph": True,
    "mem_fraction_static": 0.5,
    "max_total_tokens": 8192,
    "max_running_requests": 16,
    "skip_server_warmup": True,
}


@dataclass
class Routed:
    """One layer in one step: what came into its router, and what its experts were given."""

    layer: object
    logits: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor
    keep: torch.Tensor


@dataclass
class Step:
    mode: str
    rids: list[str]
    acted: bool = False
    layers: list[Routed] = field(default_factory=list)


class InProcess:
    def __init__(self, settings, model, **arguments):
        os.environ["XSHARE"] = json.dumps(settings)
        os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # it would compile a router of groups, for a minute
        os.environ.pop("TRITON_INTERPRET", None)  # for our kernels, not for SGLang's
        from sglang.srt.managers.scheduler import Scheduler, SpawnRanks, publish
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import PortArgs, ServerArgs

        load_plugins()
        args = ServerArgs(model_path=str(model), **(ARGUMENTS | arguments))
        ports = PortArgs.init_new(args)
        publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
        self.scheduler = Scheduler(args, ports)
        self.info = self.scheduler.get_init_info()
        self.runner = self.scheduler.tp_worker.model_runner
        self.state = self.runner.xshare
        self.requests = {}
        self.steps: list[Step] = []
        self._watch()

    def _watch(self):
        forward = self.runner.forward

        def watched(batch, *args, **kwargs):
            self.steps.append(Step(batch.forward_mode.name, list(batch.rids)))
            output = forward(batch, *args, **kwargs)
            self.steps[-1].acted = self.state.now.gate
            return output

        self.runner.forward = watched
        for layer in self.state.layers:
            self._watch_router(layer)

    def _watch_router(self, layer):
        topk, native = layer.site.topk, layer.site.topk.forward_native

        def forward_native(hidden_states, router_logits, **kwargs):
            logits = router_logits.clone()
            out = native(hidden_states, router_logits, **kwargs)
            if self.steps:
                routed = Routed(layer, logits, out.topk_weights, out.topk_ids, layer.buffers.keep.clone())
                self.steps[-1].layers.append(routed)
            return out

        topk.forward_native, topk._forward_method = forward_native, None

    def add(self, rid, ids, tokens, **custom):
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        params = SamplingParams(temperature=0, max_new_tokens=tokens, ignore_eos=True, custom_params=custom or None)
        params.normalize(None)
        request = TokenizedGenerateReqInput(
            rid=rid, input_text="", input_ids=array("q", ids), input_embeds=None, mm_inputs=None, token_type_ids=None,
            sampling_params=params, return_logprob=False, logprob_start_len=-1, top_logprobs_num=0,
            token_ids_logprob=None, stream=False,
        )  # fmt: skip
        self.scheduler.handle_generate_request(request)
        self.requests[rid] = self.scheduler.waiting_queue[-1]
        assert self.requests[rid].rid == rid

    def abort(self, rid):
        from sglang.srt.managers.io_struct import AbortReq

        self.scheduler.abort_request(AbortReq(rid=rid))

    def step(self):
        """One round of SGLang's own loop (event_loop_normal); whether there was something to do."""
        scheduler = self.scheduler
        with torch.inference_mode():
            plan = scheduler.get_next_batch_to_run(
                running_batch=scheduler.running_batch, last_batch=scheduler.last_batch
            )
            scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
            if batch:
                scheduler.process_batch_result(batch, scheduler.run_batch(batch))
            scheduler.last_batch = batch
        return bool(batch)

    def run(self):
        while self.step() or self.scheduler.waiting_queue:
            pass

    def answers(self, prompts, tokens=12, name="r", **custom):
        """Tokens of all prompts, added at once and run to the end."""
        rids = [f"{name}{place}" for place in range(len(prompts))]
        for rid, ids in zip(rids, prompts, strict=True):
            self.add(rid, ids, tokens, **custom)
        self.run()
        return [list(self.requests.pop(rid).output_ids) for rid in rids]

    def change(self, name, value):
        """As /set_internal_state hands it on; whether it was done."""
        from sglang.srt.managers.io_struct import SetInternalStateReq

        return self.scheduler.set_internal_state(SetInternalStateReq(server_args={name: value})).updated

    def stats(self):
        from sglang.srt.managers.io_struct import GetInternalStateReq

        return self.scheduler.get_internal_state(GetInternalStateReq()).internal_state["xshare"]

    def take(self):
        """The steps since the last time."""
        taken, self.steps = self.steps, []
        return taken


def check(step, policy, layout=None):
    """The set, the ids and the weights of every layer are `xshare.route`'s, which has the logits alone."""
    for routed in step.layers:
        rows = len(routed.logits)
        wanted = xshare.route(
            routed.logits,
            routed.layer.site.router,
            xshare.Policy.parse(policy),
            layout=layout or xshare.BatchLayout.one_per_row(rows),
        )
        assert routed.keep.equal(wanted.selected)
        by_expert = [torch.zeros(rows, len(routed.keep)) for _ in range(2)]
        pairs = ((routed.ids, routed.weights), (wanted.ids, wanted.weights))
        for dense, (ids, weights) in zip(by_expert, pairs, strict=True):
            dense.scatter_add_(1, ids.long(), weights.float())
        torch.testing.assert_close(*by_expert, rtol=1e-5, atol=1e-6)
