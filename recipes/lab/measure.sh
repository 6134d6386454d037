#!/usr/bin/env bash
# Train lab, and measure what policies do to its answers and to nano's, on one GPU; 25 minutes on an H200 with 16 cores.
#
#     recipes/lab/measure.sh CORPUS OUT
#
# nano is measured while lab is trained: a small model leaves most of a GPU idle. Results are in OUT/evidence, written
# cell by cell; the same command goes on from there. TRAIN and DRAFT are seconds of training, JOBS processes that
# decode, SECONDS_EACH what each of lab's three benchmarks may take, MORE further options of all benchmarks.
set -euo pipefail
corpus=$(realpath "$1") out=$(realpath -m "$2")
cd "$(dirname "$0")/../.."
train=${TRAIN:-480} draft=${DRAFT:-150} jobs=${JOBS:-$(($(nproc) - 2))} seconds=${SECONDS_EACH:-600} count=${COUNT:-100}
tiny=${TINY:+--tiny --rows 1}  # to try the script out on a CPU
where=${WHERE:-'"device": "cuda", "dtype": "bfloat16"'}
mkdir -p "$out/evidence"

trained() {
  local recipe="python recipes/nano/train.py $corpus --out $out --questions 0 $tiny"
  [ -f "$out/lab/config.json" ] || $recipe --model lab --seconds "$train" --short-for $((train * 55 / 100)) --workers 5 &
  [ -f "$out/lab-draft/config.json" ] || { sleep $((train / 3)); $recipe --model lab-draft --seconds "$draft" --workers 3; }
  wait
  cp src/xshare/models/nano/tokenizer*.json "$out/lab/"
}
trained > "$out/train.log" 2>&1 &

measure() {  # NAME SUFFIX, and the options of that benchmark
  python "benchmarks/$1.py" --json "$out/evidence/$1$2.json" --jobs "$jobs" "${@:3}" ${MORE:-} > "$out/$1$2.log" 2>&1
}
measure paper_quality "" --tasks "${TASKS:-1000}" --together 512 --engine-args "{$where}"
wait

[ -f "$out/evaluation-lab.json" ] || python recipes/nano/evaluate.py "$corpus" --out "$out" --model lab --questions 16
python recipes/lab/tasks.py "$count" "$out/evaluation-lab.json" > "$out/lab.jsonl"
lab=(--model "$out/lab" --file "$out/lab.jsonl" --tokens 1040 --seconds "$seconds")
measure paper_quality _lab "${lab[@]}" --together 512 --engine-args "{$where, \"draft\": \"$out/lab-draft\"}"
measure assumptions _lab "${lab[@]}" --together 512 --forced 160 --engine-args "{$where}"
measure neighbours _lab "${lab[@]}" --together 320 --prompts 320 --sets 4 --engine-args "{$where}"
