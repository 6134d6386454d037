#!/usr/bin/env bash
# Serve with experts spread over GPUs: a layer waits for the GPU that loads most experts.
#
#     examples/expert_parallel.sh MODEL [more options of vllm serve]
#     examples/expert_parallel.sh --tiny
#
# GPUS: 8, or two processes with --tiny. POLICY: balanced. A budget per GPU (k0=1,mg=5) fills all alike, at the price of
# answers (docs/scale.md, "Which policy").
. "$(dirname "$0")/serving.sh"
if [ -n "$is_tiny" ]; then
  # Experts on a CPU ignore which of them are a rank's own: repaired in tiny/cpu_ranks.py.
  GPUS=2 options+=(--distributed-executor-backend mp --worker-extension-cls cpu_ranks.Repaired)
fi

serve "$model" "${options[@]}" --tensor-parallel-size "${GPUS:-8}" --enable-expert-parallel \
  --additional-config "{\"xshare\": {\"policy\": \"${POLICY:-balanced}\", \"metrics\": {\"every\": 8, \"interval\": 1}}}"
ask 16 64
show_experts
curl --silent --fail "$url/metrics" | awk '
  /^xshare:experts_selected/ { selected += $2; layers++ }
  /^xshare:max_load/ { load += $2 }
  END { printf "of %.1f selected experts the fullest rank holds %.1f\n", selected / layers, load / layers }'
