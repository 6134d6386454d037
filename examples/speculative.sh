#!/usr/bin/env bash
# Serve with a draft model: the drafts of a request are its own rows, and every row keeps its share of routing weight.
#
#     DRAFT=DRAFT_MODEL examples/speculative.sh MODEL [more options of vllm serve]
#     examples/speculative.sh --tiny
#
# POLICY: `balanced`, or a budget for each request such as k0=1,mr=4. DRAFTS: drafted tokens per step, 3.
. "$(dirname "$0")/serving.sh"
if [ -n "$is_tiny" ]; then DRAFT=$(dirname "$model")/nano-draft; fi

serve "$model" "${options[@]}" \
  --speculative-config "{\"method\": \"draft_model\", \"model\": \"${DRAFT:?name the draft model}\", \"num_speculative_tokens\": ${DRAFTS:-3}}" \
  --additional-config "{\"xshare\": {\"policy\": \"${POLICY:-balanced}\", \"metrics\": {\"every\": 8, \"interval\": 1}}}"
ask 16 64
show_experts
curl --silent --fail "$url/metrics" | awk '
  /^vllm:spec_decode_num_draft_tokens_total/ { drafted = $2 }
  /^vllm:spec_decode_num_accepted_tokens_total/ { accepted = $2 }
  END { printf "%d of %d drafted tokens were accepted, %.0f%%\n", accepted, drafted, 100 * accepted / drafted }'
