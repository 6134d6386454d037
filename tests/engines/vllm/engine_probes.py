"""What an engine in process really did, from its scheduler's output and from between its routers and its experts."""

from __future__ import annotations

from dataclasses import dataclass, field

import oracle
import torch
from random_cases import as_oracle

import xshare


@dataclass
class Routed:
    """One layer in one step: what came into its router, and what its experts were given."""

    logits: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor
    native: tuple[torch.Tensor, torch.Tensor]  # weights and ids of vLLM's own code for these logits
    keep: set[int]

    @property
    def dense(self) -> torch.Tensor:
        return dense(self.ids, self.weights, self.logits.shape[-1])


@dataclass
class Step:
    decoding: bool  # by the scheduler's output: every request past its prompt, with one token beside its drafts
    starts: list[int]
    drafted: list[int]
    acted: bool
    layers: list[Routed] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return self.starts[-1]

    @property
    def requests(self) -> list[int]:
        spans = zip(self.starts, self.starts[1:], strict=False)
        return [request for request, (a, b) in enumerate(spans) for _ in range(a, b)]


def dense(ids: torch.Tensor, weights: torch.Tensor, num_experts: int) -> torch.Tensor:
    """Weights by expert, [n, N]: whatever order a row's experts came in."""
    return torch.zeros(len(ids), num_experts).scatter_add_(1, ids.long(), weights.float())


def runner_of(llm):
    return llm.collective_rpc(lambda worker: worker.model_runner)[0]


def check(step: Step, layer, routed: Routed, policy: str, cost: list[float] | None = None) -> None:
    """The set, the ids and the weights of one layer in one step are the oracle's, which has the logits alone."""
    router, parsed = layer.site.router, xshare.Policy.parse(policy)
    bias = None if router.correction_bias is None else router.correction_bias.tolist()
    groups = (router.n_group, router.topk_group)
    rule = oracle.Router(
        router.top_k, router.scoring, router.renormalize, bias, *groups, scale=router.routed_scaling_factor
    )
    wanted = oracle.route(
        routed.logits.double().tolist(),
        rule,
        requests=step.requests,
        score=parsed.score,
        policy=as_oracle(parsed),
        cost=cost,
    )
    assert routed.keep == wanted["selected"]
    assert set(routed.ids.flatten().tolist()) <= routed.keep
    weights = dense(torch.tensor(wanted["ids"]), torch.tensor(wanted["weights"]), layer.site.num_experts)
    got = routed.dense
    if routed.logits.dtype == torch.bfloat16:  # equal logits are common, and vLLM's top-k takes either
        got, weights = got.sort(-1).values, weights.sort(-1).values
    torch.testing.assert_close(got, weights, **tolerance(routed))


def check_coverage(layer, routed: Routed, policy: str) -> None:
    """No row is routed to less of its native weight than rho."""
    rho = xshare.Policy.parse(policy).coverage
    if not rho:
        return
    native = xshare.route(routed.logits, layer.site.router, xshare.Policy(method="native"))
    for routed_ids, ids, weights in zip(routed.ids.tolist(), native.ids.tolist(), native.weights.tolist(), strict=True):
        kept = sum(weight for expert, weight in zip(ids, weights, strict=True) if expert in routed_ids)
        assert kept >= rho * sum(weights) * (1 - 1e-5)


def tolerance(routed: Routed) -> dict[str, float]:
    """vLLM's routers compute weights in float32, but for the softmax of bfloat16 logits inside 0.29's experts."""
    half = routed.logits.dtype == torch.bfloat16
    return {"rtol": 1e-2, "atol": 5e-3} if half else {"rtol": 1e-5, "atol": 1e-6}


class Recorder:
    def __init__(self, llm):
        self.runner = runner_of(llm)
        self.state = self.runner.xshare
        self.steps: list[Step] = []
        self.prompt_lengths: dict[str, int] = {}
        self._watch_steps()
        for layer in self.state.layers:
            if layer.site.monolithic:
                self._watch_experts(layer)
            else:
                self._watch_router(layer)

    def take(self) -> list[Step]:
        """The steps since the last time."""
        taken, self.steps = self.steps, []
        return taken

    def _watch_steps(self):
        native = self.runner.execute_model

        def execute_model(scheduled, *args, **kwargs):
            if scheduled.total_num_scheduled_tokens:
                self.steps.append(Step(False, [0], [], False))
            output = native(scheduled, *args, **kwargs)
            if scheduled.total_num_scheduled_tokens:
                self._finish(self.steps[-1], scheduled)
            return output

        self.runner.execute_model = execute_model

    def _finish(self, step: Step, scheduled):
        done = {request.req_id: request.num_computed_tokens for request in scheduled.scheduled_new_reqs}
        self.prompt_lengths |= {
            request.req_id: len(request.prompt_token_ids) for request in scheduled.scheduled_new_reqs
        }
        cached = scheduled.scheduled_cached_reqs
        done |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        order = self.runner.input_batch.req_ids
        tokens = [scheduled.num_scheduled_tokens[request] for request in order]
        step.drafted = [len(scheduled.scheduled_spec_decode_tokens.get(request, ())) for request in order]
        step.decoding = all(done[request] >= self.prompt_lengths[request] for request in order) and all(
            count == 1 + drafts for count, drafts in zip(tokens, step.drafted, strict=True)
        )
        step.starts = [0, *torch.tensor(tokens).cumsum(0).tolist()]
        step.acted = self.state.now.gate
        if step.acted:
            assert [int(start) for start in self.state.now.starts] == step.starts

    def _watch_router(self, layer):
        router = layer.site.runner.router
        native = router.select_experts

        def select_experts(*args, **kwargs):
            weights, ids = native(*args, **kwargs)
            hidden, logits = kwargs["hidden_states"], kwargs["router_logits"]
            own = type(router)._compute_routing(router, hidden, logits, None)
            keep = set(layer.buffers.keep.nonzero().flatten().tolist())
            if self.steps:  # otherwise somebody asks the router by hand
                self.steps[-1].layers.append(Routed(logits.clone(), weights.clone(), ids.clone(), own, keep))
            return weights, ids

        router.select_experts = select_experts

    def _watch_experts(self, layer):
        """Experts that route by themselves, in vLLM 0.29: between their routing function and them."""
        from vllm.model_executor.layers.fused_moe.experts import cpu_moe

        experts = layer.site.runner.routed_experts
        native, routing = experts.forward_monolithic, getattr(cpu_moe.select_experts, "native", cpu_moe.select_experts)

        def forward_monolithic(x, router_logits, input_ids=None):
            logits = router_logits.clone()

            def select_experts(**kwargs):
                weights, ids = routing(**kwargs)
                own = routing(
                    **(kwargs | {"router_logits": logits, "e_score_correction_bias": layer.site.router.correction_bias})
                )
                keep = set(layer.buffers.keep.nonzero().flatten().tolist())
                effective_weights = weights.clone()
                if layer.site.router.scoring == "softmax" and not layer.site.router.renormalize and self.state.now.gate:
                    share = (logits.double().softmax(-1) * layer.buffers.keep).sum(-1, keepdim=True)
                    effective_weights *= share.float()  # as the output is, afterwards
                if self.steps:
                    self.steps[-1].layers.append(Routed(logits, effective_weights, ids.clone(), own, keep))
                return weights, ids

            select_experts.native = routing
            cpu_moe.select_experts = select_experts
            try:
                return native(x=x, router_logits=router_logits, input_ids=input_ids)
            finally:
                cpu_moe.select_experts = routing

        experts.forward_monolithic = forward_monolithic
