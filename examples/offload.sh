#!/usr/bin/env bash
# Serve a model whose experts do not fit on the GPU: they stay in host memory, and every step reads those it needs.
#
#     examples/offload.sh MODEL [more options of vllm serve]
#     examples/offload.sh --tiny
#
# GB of experts in host memory, 60: more than there are keeps all of them there, fewer leave those of the last layers on
# the GPU. POLICY: a preset, or any policy. It serves until Ctrl-C; with ONCE=1 it ends after sixteen questions.
# docs/offload.md says what to expect. To measure it on your machine, start it with VLLM_SERVER_DEV_MODE=1 LIVE=any, and:
#
#     xshare bench --engine http://127.0.0.1:8000 --batch 16 --tokens 64 --policy balanced --policy fast
. "$(dirname "$0")/serving.sh"
offload=(--cpu-offload-gb "${GB:-60}" --cpu-offload-params experts --max-model-len "${MAX_MODEL_LEN:-4096}")
if [ -n "$is_tiny" ]; then offload=(); fi # on a CPU all memory is the host's, and vLLM has nothing to move

serve "$model" "${offload[@]}" "${options[@]}" --additional-config \
  "{\"xshare\": {\"policy\": \"${POLICY:-balanced}\", \"live\": \"${LIVE:-budgets}\", \"metrics\": {\"every\": 8, \"interval\": 1}}}"
if [ -n "$log" ]; then grep -o 'xshare: .* host memory.*' "$log" || echo "no experts were moved to host memory"; fi
ask 16 64
show_experts
if [ -z "${URL:-}${ONCE:-}" ]; then
  echo "serving $name at $url until Ctrl-C"
  wait "$server"
fi
