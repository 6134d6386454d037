#!/usr/bin/env bash
# Ask the questions of lm-evaluation-harness, natively and under a policy: the same server, the same questions.
#
#     pip install "xshare[eval]"
#     TASKS=gsm8k examples/lm_eval.sh MODEL [more options of vllm serve]
#     examples/lm_eval.sh --tiny                                        nano's own questions, made on the spot
#     URL=http://127.0.0.1:8000 examples/lm_eval.sh MODEL               a server that runs, in development mode
#
# num_concurrent is the batch that selection sees: evaluate at the size you serve. LIMIT: questions per task, with --tiny of each kind.
export VLLM_SERVER_DEV_MODE=1 # so that the policy can be switched; the server listens on this machine alone
. "$(dirname "$0")/serving.sh"
tasks=(--tasks "${TASKS:-gsm8k}" ${LIMIT:+--limit "$LIMIT"})
out=$(mktemp -d)
trap 'rm -r "$out"' EXIT
if [ -n "$is_tiny" ]; then
  python "$here/tiny/lm_eval_task.py" "$out" "${LIMIT:-2}"
  tasks=(--tasks nano_questions --include_path "$out")
fi

serve "$model" "${options[@]}" --no-enable-prefix-caching \
  --additional-config "{\"xshare\": {\"policy\": \"${POLICY:-balanced}\", \"live\": \"any\"}}"
trap 'rpc xshare_switch true || true; stop; rm -r "$out"' EXIT # a server that is not ours is left as it was found
for on in false true; do
  rpc xshare_switch "$on"
  echo "$([ "$on" = true ] && echo "${POLICY:-balanced}" || echo native):"
  "${LM_EVAL:-lm_eval}" run --model local-completions "${tasks[@]}" --model_args \
    "model=$name,base_url=$url/v1/completions,num_concurrent=16,tokenized_requests=False,tokenizer_backend=None,max_length=1024" \
    2>"$out/log" | grep '^|' || { tail -n 20 "$out/log" >&2 && exit 1; }
done
