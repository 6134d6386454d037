#!/usr/bin/env bash
# Measure with vLLM's own client, `vllm bench serve`: the same requests to the same server, natively and under a policy.
#
#     examples/vllm_bench_serve.sh MODEL [more options of vllm serve]
#     examples/vllm_bench_serve.sh --tiny
#     URL=http://127.0.0.1:8000 examples/vllm_bench_serve.sh MODEL      a server that runs, in development mode
#
# POLICY: a preset, or any policy. REQUESTS at once: 16, the batch that selection sees; rounds of both: 3. One pair of
# runs says little on a machine with other work: `xshare bench --engine URL` takes turns and gives an interval.
export VLLM_SERVER_DEV_MODE=1 # so that the policy can be switched; the server listens on this machine alone
. "$(dirname "$0")/serving.sh"
requests=${REQUESTS:-16} input=512 output=256
if [ -n "$is_tiny" ]; then input=32 output=32; fi

serve "$model" "${options[@]}" --no-enable-prefix-caching \
  --additional-config "{\"xshare\": {\"policy\": \"${POLICY:-balanced}\", \"live\": \"any\"}}"
trap 'rpc xshare_switch true || true; stop' EXIT # a server that is not ours is left as it was found
for round in $(seq "${ROUNDS:-3}"); do
  for on in false true; do
    rpc xshare_switch "$on"
    echo "round $round, $([ "$on" = true ] && echo "${POLICY:-balanced}" || echo native):"
    vllm bench serve --base-url "$url" --model "$name" --tokenizer "$model" --dataset-name random --seed "$round" \
      --random-input-len "$input" --random-output-len "$output" --ignore-eos --temperature 0 \
      --num-prompts $((2 * requests)) --max-concurrency "$requests" --disable-tqdm 2>&1 |
      grep -E 'Successful requests|Output token throughput|Median (TTFT|ITL)'
  done
done
