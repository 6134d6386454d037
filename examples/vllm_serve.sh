#!/usr/bin/env bash
# Serve a model with XShare in vLLM, ask it sixteen questions at once, and say which experts that took.
#
#     examples/vllm_serve.sh MODEL [more options of vllm serve]
#     examples/vllm_serve.sh --tiny
#
# It serves until Ctrl-C; with ONCE=1 it ends after the questions. POLICY: a preset, or any policy. For the clients
# beside this file start it with VLLM_SERVER_DEV_MODE=1 LIVE=any, so that they can switch selection off and on.
. "$(dirname "$0")/serving.sh"

# Metrics are counted and written often, so that there is something to show: leave that out where it serves for long.
serve "$model" "${options[@]}" --additional-config \
  "{\"xshare\": {\"policy\": \"${POLICY:-balanced}\", \"live\": \"${LIVE:-budgets}\", \"metrics\": {\"every\": 8, \"interval\": 1}}}"
ask 16 64
show_experts
if [ -z "${URL:-}${ONCE:-}" ]; then
  echo "serving $name at $url until Ctrl-C"
  wait "$server"
fi
