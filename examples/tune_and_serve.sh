#!/usr/bin/env bash
# Find the boldest policy that keeps the answers to your questions, and serve the profile that comes out.
#
#     TASKS=questions.jsonl examples/tune_and_serve.sh MODEL [more options of vllm serve]
#     examples/tune_and_serve.sh --tiny
#
# questions.jsonl: {"question": "What is 6 * 7?", "answer": "42", "compare": "number"} on each line. MAX_DROP: how many
# right answers may be lost, 1%: it takes about 500 questions to show that none is. PROFILE: where the profile goes. It
# serves until Ctrl-C; with ONCE=1 it ends after sixteen questions. A server that runs already (URL, in development mode,
# started with LIVE=any) takes the policy that was found while it serves.
. "$(dirname "$0")/serving.sh"
profile=${PROFILE:-profile.yaml}
tune=(--model "$model" --tasks "${TASKS:-questions.jsonl}" --max-drop "${MAX_DROP:-1%}")
if [ -n "$is_tiny" ]; then # a bound so wide that a few questions decide: to see it run, not to serve
  folder=$(mktemp -d)
  trap 'rm -r "$folder"' EXIT
  python "$here/tiny/questions.py" 96 >"$folder/questions.jsonl"
  tune=(--model nano --engine transformers --tasks "$folder/questions.jsonl" --max-drop 60% --batch 4 --tokens 12
    --engine-args '{"lanes": 16}')
fi

xshare tune "${tune[@]}" --out "${profile%.*}.json" --profile "$profile"
if [ -n "$is_tiny" ]; then rm -r "$folder" && trap - EXIT; fi
test -f "$profile" || { echo "no policy was found that may be served: nothing is started" && exit 1; }
serve "$model" "${options[@]}" \
  --additional-config "{\"xshare\": {\"profile\": \"$(realpath "$profile")\", \"metrics\": {\"every\": 8, \"interval\": 1}}}"
if [ -n "${URL:-}" ]; then rpc xshare_set "\"$(sed -n 's/^policy: //p' "$profile")\""; fi
ask 16 64
show_experts
if [ -z "${URL:-}${ONCE:-}" ]; then
  echo "serving $name at $url until Ctrl-C"
  wait "$server"
fi
