#!/usr/bin/env bash
# Serve a model whose experts do not fit on the GPU: they stay in host memory, and every step reads those it needs.
#
#     examples/offload/serve.sh MODEL [GB] [POLICY] [more options of vllm serve]
#
# GB of experts in host memory: more than there are keeps all of them there. POLICY: a preset, or any policy. With
# LIVE=any in the environment the policy can be changed to any other while it serves.
set -euo pipefail
model=${1:?name a model, such as Qwen/Qwen3-30B-A3B} gb=${2:-60} policy=${3:-balanced}
exec vllm serve "$model" \
  --cpu-offload-gb "$gb" --cpu-offload-params experts \
  --max-model-len "${MAX_MODEL_LEN:-4096}" \
  --additional-config "{\"xshare\": {\"policy\": \"$policy\", \"live\": \"${LIVE:-budgets}\"}}" \
  "${@:4}"
