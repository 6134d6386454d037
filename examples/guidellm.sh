#!/usr/bin/env bash
# Measure with GuideLLM: the same load on the same server, natively and under a policy.
#
#     pip install guidellm                                              in an environment of its own
#     examples/guidellm.sh MODEL [more options of vllm serve]
#     examples/guidellm.sh --tiny
#     URL=http://127.0.0.1:8000 examples/guidellm.sh MODEL              a server that runs, in development mode
#
# GUIDELLM: the command, where it is not on the path. REQUESTS at once: 16, the batch that selection sees.
export VLLM_SERVER_DEV_MODE=1 # so that the policy can be switched; the server listens on this machine alone
. "$(dirname "$0")/serving.sh"
requests=${REQUESTS:-16} input=512 output=256
if [ -n "$is_tiny" ]; then input=32 output=32; fi

serve "$model" "${options[@]}" --no-enable-prefix-caching \
  --additional-config "{\"xshare\": {\"policy\": \"${POLICY:-balanced}\", \"live\": \"any\"}}"
out=$(mktemp -d)
trap 'rpc xshare_switch true || true; stop; rm -r "$out"' EXIT # a server that is not ours is left as it was found
for on in false true; do
  rpc xshare_switch "$on"
  echo "$([ "$on" = true ] && echo "${POLICY:-balanced}" || echo native):"
  "${GUIDELLM:-guidellm}" run --backend "kind=openai_http,target=$url,model=$name,request_format=/v1/completions" \
    --tokenizer "kind=huggingface_auto,model=$model" --profile "kind=concurrent,streams=$requests" \
    --data "kind=synthetic_text,prompt_tokens=$input,output_tokens=$output" --constraint "kind=max_requests,count=$((2 * requests))" \
    --output "kind=json,path=$out/report.json" --disable-console >"$out/log" 2>&1 || { tail -n 20 "$out/log" >&2 && exit 1; }
  python - "$out/report.json" <<'END'
import json, sys

metrics = json.load(open(sys.argv[1]))["benchmarks"][0]["metrics"]
speed, between, first = (
    metrics[name]["successful"]
    for name in ("output_tokens_per_second", "inter_token_latency_ms", "time_to_first_token_ms")
)
print(f"    {metrics['request_totals']['successful']} requests, {speed['mean']:.1f} tokens/s, "
      f"{between['median']:.2f} ms between tokens, {first['median']:.0f} ms to the first")
END
done
