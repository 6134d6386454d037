# What the examples share, to be sourced: a vLLM server that is started, waited for, asked and stopped.
#
# --tiny in place of a model serves nano on the CPU in float32, without a GPU and without a download. URL in the
# environment names a server that runs already: then nothing is started, and nothing is stopped. PORT is the port of a
# server that is started; it listens on this machine alone.
# shellcheck shell=bash disable=SC2034  # who sources it reads what is set here
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
url=${URL:-} server='' log='' is_tiny=''
model=${1:?name a model, such as openai/gpt-oss-20b, or --tiny} options=("${@:2}")

if [ "$model" = --tiny ]; then
  is_tiny=yes
  model=$(python -c 'import xshare.models; print(xshare.models.folder("nano"))')
  options=(--served-model-name nano --dtype float32 --enforce-eager --max-model-len 1024 --max-num-seqs 16
    --kv-cache-memory-bytes 268435456 "${options[@]}")
  export PATH="$here/tiny:$PATH" PYTHONPATH="$here/tiny${PYTHONPATH:+:$PYTHONPATH}"
  export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_OMP_THREADS_BIND=nobind
fi

# serve MODEL OPTIONS...: start a server, and wait until it answers.
serve() {
  if [ -n "$url" ]; then
    echo "the server at $url is used as it runs"
  else
    url=http://127.0.0.1:${PORT:-8000} log=$(mktemp)
    if (exec 3<>"/dev/tcp/127.0.0.1/${PORT:-8000}") 2>/dev/null; then
      echo "something listens on $url already: name another PORT, or use that server with URL=$url" >&2
      exit 1
    fi
    echo "vllm serve ${*@Q}"
    trap stop EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    vllm serve "$@" --host 127.0.0.1 --port "${PORT:-8000}" >"$log" 2>&1 &
    server=$!
    until curl --silent --fail --max-time 5 --output /dev/null "$url/health"; do
      kill -0 "$server" 2>/dev/null || { tail -n 30 "$log" >&2 && exit 1; }
      sleep 0.5
    done
    grep -o 'xshare: .* layers .*' "$log" || true # what it attached to
  fi
  name=$(curl --silent --fail "$url/v1/models" | python -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])')
}

stop() {
  if [ -n "$server" ] && kill "$server" 2>/dev/null; then
    wait "$server" || true
    echo "the server has stopped"
  fi
  rm -f "$log"
}

# ask COUNT TOKENS: so many questions at once, and the first answer.
ask() {
  local number folder start='' end=''
  folder=$(mktemp -d)
  if [ -n "$is_tiny" ]; then start='<|question|>' end='<|answer|>'; fi
  for number in $(seq "$1"); do
    printf '{"model": "%s", "prompt": "%sCompute %d + 30 - 5%s", "max_tokens": %d, "temperature": 0, "ignore_eos": true}' \
      "$name" "$start" "$((3 * number + 8))" "$end" "$2" >"$folder/$number.json"
  done
  for number in $(seq "$1"); do
    curl --silent --fail "$url/v1/completions" --header 'Content-Type: application/json' \
      --data "@$folder/$number.json" --output "$folder/$number.answer" &
    asked[number]=$!
  done
  wait "${asked[@]}"
  echo "asked $1 questions at once; the first answer begins:"
  python -c 'import json, sys; print("   ", json.load(open(sys.argv[1]))["choices"][0]["text"][:60].splitlines()[0])' "$folder/1.answer"
  rm -r "$folder"
}

# rpc METHOD ARGUMENTS: live control of a server in development mode.
rpc() {
  local answer
  answer=$(curl --silent --fail "$url/collective_rpc" --header 'Content-Type: application/json' \
    --data "{\"method\": \"$1\", \"args\": [$2]}") || { echo "$url is not in development mode: VLLM_SERVER_DEV_MODE=1" >&2 && return 1; }
  case $answer in *'"error"'*) echo "$answer" >&2 && return 1 ;; esac
}

# What the server's own /metrics say of its layers: the mean over them. They are written every second here.
show_experts() {
  sleep 2
  curl --silent --fail "$url/metrics" | awk '
    /^xshare:experts_native/ { native += $2; layers++ }
    /^xshare:experts_active/ { active += $2 }
    /^xshare:mass_kept/ { mass += $2 }
    /^xshare:max_load/ { load += $2 }
    /^xshare:steps_pruned_total/ { steps = $2 }
    END {
      if (!layers) { print "no step was pruned yet"; exit }
      printf "%d steps were pruned: %.1f experts per layer and step instead of %.1f, %.0f%% of the routing weight kept\n",
        steps, active / layers, native / layers, 100 * mass / layers
    }'
}
