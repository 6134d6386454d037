#!/usr/bin/env bash
# Train lab, and measure what policies do to its answers and to nano's, on a machine with one GPU and a dozen cores.
#
#     recipes/lab/measure.sh CORPUS OUT
#
# lab has the GPU: it is trained, then measured. nano, which is small, is measured on the CPU's cores meanwhile, on those
# that are free. Results are in OUT/evidence, written cell by cell; the same command goes on from there. By environment:
# STEPS and DRAFT_STEPS, of training; NANO_JOBS (0: not nano) and LAB_JOBS, processes that decode; LAB_SECONDS, four
# numbers, what each of lab's benchmarks may take (0: it is left out); MORE, further options of all benchmarks.
set -euo pipefail
root=$(realpath "$(dirname "$0")/../..")
corpus=$(realpath "$1") out=$(realpath -m --relative-to="$root" "$2")  # results say how they were made: no folder of yours
cd "$root"
steps=${STEPS:-2277} draft_steps=${DRAFT_STEPS:-240} lab_jobs=${LAB_JOBS:-6} nano_jobs=${NANO_JOBS:-$(($(nproc) - 6))}
gpu=${GPU:-'"device": "cuda", "dtype": "bfloat16"'}
mkdir -p "$out/evidence"

measure() {  # NAME SUFFIX JOBS, and the options of that benchmark
  [[ " ${*:4} " != *" --seconds 0 "* ]] || return 0
  ${polite:-} python "benchmarks/$1.py" --json "$out/evidence/$1$2.json" --jobs "$3" "${@:4}" ${MORE:-} > "$out/$1$2.log" 2>&1
}

nano() {
  local polite="nice -n 10"
  measure paper_quality "" "$nano_jobs" --together 512
  measure neighbours "" "$nano_jobs" --together 320
  measure assumptions "" "$nano_jobs" --together 512
}
[ "$nano_jobs" = 0 ] || nano &

recipe=(python recipes/nano/train.py "$corpus" --out "$out" --questions 0)
[ -f "$out/lab-draft/config.json" ] ||
  "${recipe[@]}" --model lab-draft --steps "$draft_steps" --workers 2 > "$out/train-draft.log" 2>&1 &
drafting=$!
[ -f "$out/lab/config.json" ] ||
  "${recipe[@]}" --model lab --steps "$steps" --short-steps $((steps * 55 / 100)) --workers 4 > "$out/train.log" 2>&1
cp nano/xshare_nano/nano/tokenizer*.json "$out/lab/"
[ -f "$out/evaluation-lab.json" ] ||
  python recipes/nano/evaluate.py "$corpus" --out "$out" --model lab --questions 16 > "$out/evaluation.log" 2>&1
wait $drafting
python recipes/lab/tasks.py "${COUNT:-500}" "$out/evaluation-lab.json" > "$out/lab.jsonl"
lab=("$lab_jobs" --model "$out/lab" --file "$out/lab.jsonl" --tokens 720)
read -r frontier quality assumptions neighbours <<< "${LAB_SECONDS:-1200 600 600 600}"
measure frontier "" "${lab[@]}" --seconds "$frontier" --together 1000 --engine-args "{$gpu, \"draft\": \"$out/lab-draft\"}"
measure paper_quality _lab "${lab[@]}" --seconds "$quality" --together 1000 --engine-args "{$gpu, \"draft\": \"$out/lab-draft\"}"
measure assumptions _lab "${lab[@]}" --seconds "$assumptions" --together 1000 --forced 160 --engine-args "{$gpu}"
measure neighbours _lab "${lab[@]}" --seconds "$neighbours" --together 640 --prompts 320 --sets 4 --engine-args "{$gpu}"
wait
