"""What columns of result files and fields of `xshare_stats` mean, for reference.py. Tests look for them in the code."""

from __future__ import annotations

# Of the rows of any result file.
COLUMNS = {
    "policy": "the policy, as its string; `native` for none",
    "method": "its method; `noop` for the control",
    "model": "the model that was decoded",
    "batch": "requests decoded together; of a staircase, rows of a step",
    "requests": "requests of a run",
    "rate": "requests per second that arrive; nothing where all are there at once",
    "prompts": "where prompts come from",
    "prompt_tokens": "tokens of a prompt",
    "tokens": "of a bench, tokens of an answer; of quality, their mean number",
    "seed": "of the prompts, questions or batches",
    "drafts": "drafted tokens per request and step",
    "draft": "the same, in a replay",
    "repeats": "runs that the medians are of",
    "otps": "output tokens per second of a request, from its first token to its last: median over requests",
    "otps_total": "output tokens per second of all requests, over the whole run",
    "ratio": "speed against native: of `otps`, or of a step where only steps were timed; above 1 is faster",
    "total_ratio": "the same of `otps_total`",
    "step_ratio": "the same of the time of a step",
    "equal_ratio": "of a row by cost: `otps` against the plain policy that loads as many experts",
    "ttft_ms_p50": "time to a request's first token, from its arrival: median",
    "ttft_ms_p99": "the same: 99th percentile",
    "itl_ms_p50": "time between tokens: median; tokens accepted together count once",
    "itl_ms_p99": "the same: 99th percentile",
    "step_ms": "time of a step in which no prompt was read; a server does not tell",
    "rows_per_step": "tokens that such a step gave",
    "accepted_length": "tokens that a request gets from a step, with drafts",
    "accepted": "the same, of quality",
    "active": "experts that a layer loads per step: mean over sampled steps and layers",
    "active_native": "experts that it would load natively in the same steps",
    "mass": "gating mass: share of the native routing weight whose expert is kept",
    "acted": "share of the decode steps on which selection ran",
    "acted_all": "the same share of all steps, those that read prompts among them",
    "left_alone": "the reason why it did not on most of the others",
    "identical": "share of answers that are native's, token for token",
    "cost": "true: sets were weighed by a staircase; of a staircase, what a set of this size costs, in experts",
    "equals": "the policy that, by cost, loads as many experts as this plain one",
    "questions": "questions asked",
    "accuracy": "share of right answers; the interval is Wilson's",
    "change": "accuracy against native on the same questions; the interval is Agresti and Min's",
    "p": "McNemar's exact p value of the change",
    "lost": "answers that native has right and the policy wrong",
    "won": "answers that the policy has right and native wrong",
    "agreement": "share of native's tokens decoded before the first that differs",
    "diverged": "share of answers that differ from native's at all",
    "diverged_at": "the token at which they do: median",
    "tokens_per_s": "tokens per second of pure decode steps",
    "experts_active": "experts loaded, by layer",
    "experts_native": "experts that would be loaded natively, by layer",
    "mixed": "whether batches hold several kinds of questions",
    "cut": "share of answers that reached `--tokens` without an end",
    "unsettled": "with `--neighbours`: share of answers that change when questions come in another order",
    "texts": "texts that were read, with `--texts`",
    "kl": "KL of the next token from native's, in nats per token of native's answers, or of the texts",
    "perplexity": "of native's answers under the policy, or of the texts",
    "perplexity_native": "with `--texts`: of the same texts natively",
    "perplexity_ratio": "with `--texts`: the ratio of the two; the interval is a bootstrap's over batches",
    "same_token": "share of positions at which both would go on with the same token",
    "predicted": "speed that the law of time predicts",
    "state": "of tune: `holds`, `fails`, `undecided`, or `not tried`",
    "search_questions": "questions asked in the search",
    "search_change": "change of accuracy in them",
    "search_accuracy": "accuracy in them",
    "search_bound": "bounds that hold however often one looks",
    "unseen_questions": "questions asked that nobody had looked at",
    "unseen_change": "change of accuracy in them",
    "unseen_accuracy": "accuracy in them",
    "unseen_bound": "bounds that hold however often one looks",
    "search": "95 % interval of `search_change`, of a single look",
    "unseen": "95 % interval of `unseen_change`, of a single look",
    "devices": "devices that experts are spread over",
    "mix": "which sequences share a batch: `random`, `domain` (several domains), `single` (one domain)",
    "layer": "the model's own number of a layer; nothing where a row is of all layers",
    "top1_kept": "share of rows whose best expert is kept",
    "below_half": "share of rows that keep less than half of their routing weight",
    "smallest_kept": "the least share of its routing weight that a row keeps",
    "max_load": "experts of the set on the fullest device",
    "batches": "batches that were replayed",
    "closed_form": "experts that independent, uniform choices would load",
    "pair": "which two tokens: consecutive, of one domain, of different domains",
    "top": "size of the top sets that are compared",
    "overlap": "experts that the two share",
    "chance": "experts that two random sets would share",
    "pairs": "pairs of tokens",
    "entropy": "entropy of the experts' load, 1 for an even one",
    "dead": "share of experts that were never chosen",
    "heaviest": "load of the most used expert, in even loads",
    "load": "load of each expert, in even loads",
    "experts": "experts of the set",
    "ms": "time of a step",
    "backend": "the kernel that computes the experts",
    "moe_backend": "the value of vLLM's `--moe-backend`",
    "layers": "MoE layers",
    "rounds": "rounds that the medians are of",
    "settled": "whether every size's time has a standard error of at most a quarter of what an expert costs",
    "expert_mb": "size of one expert, MB",
    "mass_shared": "gating mass of the rows of requests that are not protected",
    "protected_requests": "how many of a batch's requests that is",
    "protected": "with `--protect`: share of the requests that are protected; nothing in plain rows",
    "nobody_ratio": "of such a row: speed against the same policy with nobody protected",
    "protected_identical": "of such a row: share of the protected answers that are native's, token for token",
    "control": "of `quality --protect`: native routing against itself, with `other mates` or `half the batch`",
    "protected_questions": "questions whose requests were protected",
    "protected_same": "of them, how many answers are native's, token for token",
    "same": "the same of the other questions",
    "task": "the task of lm-evaluation-harness, where it was asked",
    "metric": "the harness's own measure by which an answer is right",
}
ENDS = ("_low", "_high")  # of the interval of a column
PREFIX = "accuracy "  # with a kind of question behind it

BENCH = (
    "policy cost equals method batch requests rate prompt_tokens tokens prompts seed drafts repeats otps otps_total "
    "ratio total_ratio step_ratio equal_ratio ttft_ms_p50 ttft_ms_p99 itl_ms_p50 itl_ms_p99 step_ms rows_per_step "
    "accepted_length active active_native mass mass_shared acted acted_all left_alone identical protected "
    "protected_requests nobody_ratio protected_identical"
)
QUALITY = (
    "policy method questions active active_native mass accuracy change p lost won agreement diverged diverged_at "
    "tokens tokens_per_s experts_active experts_native accepted mixed batch drafts cut unsettled kl perplexity "
    "perplexity_native perplexity_ratio same_token texts task metric control protected protected_questions "
    "protected_same same mass_shared"
)
REPLAY = (
    "policy method batch draft devices mix seed layer active active_native mass top1_kept below_half smallest_kept "
    "max_load batches mass_shared protected protected_requests"
)
# By command, in the order in which a reader looks for them.
FILES = {
    "xshare bench": BENCH,
    "xshare quality": QUALITY,
    "xshare doctor": (
        "policy batch step_ms active active_native mass predicted ratio mass_shared protected protected_requests "
        "nobody_ratio requests repeats"
    ),
    "xshare doctor --stairs": "batch experts ms active cost backend layers rounds settled",
    "xshare doctor --backends": f"moe_backend backend {BENCH}",
    "xshare tune": (
        "policy active active_native mass kl predicted cost state search_questions search_change search search_bound "
        "search_accuracy unseen_questions unseen_change unseen unseen_bound unseen_accuracy experts_active "
        "experts_native accuracy ratio"
    ),
    "xshare replay": REPLAY,
    "xshare replay --curve": f"{REPLAY} closed_form",
    "xshare replay --overlap": "pair top overlap chance pairs",
    "xshare trace load": "layer entropy dead heaviest load",
    "xshare demo": (
        "model policy method questions active active_native mass accuracy change p lost won agreement diverged "
        "diverged_at tokens tokens_per_s experts_active experts_native batch step_ms ratio repeats expert_mb"
    ),
}

# Of every result file, beside its rows.
PARTS = {
    "format": "2 since a policy that names no score means `score=topk`; files without it mean `score=full`",
    "provenance": "what the first run says of itself: `argv`, `time`, `versions`, `machine`, `git`, and its settings",
    "stamps": "the same of later runs that went on from the file: a record with `stamp` n is of the n-th",
    "rows": "one flat record per policy and setting",
    "samples": "what the rows were made from, where a command goes on from its file",
}

# Of `xshare_stats`, beside the figures of the metrics.
STATS = {
    "pid": "the worker's process",
    "policy": "the policy that it serves",
    "on": "whether selection is switched on",
    "cost": "whether sets are weighed by what they cost",
    "stairs": "sha256 of the staircase, where there is one",
    "steps_pruned": "steps on which selection acted",
    "steps_bypassed": "steps that were left alone, by reason",
    "layers": "names of the layers that are served",
    "experts": "experts per layer",
    "top_k": "experts that the model gives a token",
    "expert_bytes": "size of one expert in all layers together",
    "host_layers": "layers whose experts lie in host memory",
    "routed_layers": "layers whose routing is done in the selection's own launch",
    "backend": "the kernel that computes the experts",
    "samples": "steps in which experts were counted since the last change",
}


def columns(command: str) -> list[str]:
    return FILES[command].split()


def unknown(command: str, names: set[str]) -> set[str]:
    """Columns of a command's rows that the reference does not list."""
    listed = set(columns(command))

    def base(name: str) -> str:
        if name.startswith(PREFIX):
            return "accuracy"
        for end in ENDS:
            name = name.removesuffix(end)
        return name

    return {name for name in names if base(name) not in listed}
