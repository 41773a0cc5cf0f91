#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The gates that need a GPU and a real model, in one call:
#
#   a       the example engine's logits against transformers on the same weights, 4,096 positions, once
#           through prefill and once through decode; K and V in q8_0 and q4_0 beside them, for the record
#   b       the same bits of all logits, spilled and resident: a prompt of 4,000 tokens, 200 decoded
#   c       a fact at many depths of a long context, asked for at its end (gates/needle.py); trains the
#           model for it first if there is none
#   speed   tokens per second and bytes of resident, op-level, ring and the bound
#
#   tools/gpu_gates.sh FOLDER [GATE...]
#
# writes gates.txt, a JSON file per gate and logs into FOLDER, and prints the summary. It needs nvcc,
# Meson, and for a and c python3 with torch, transformers and gguf; nothing is installed or fetched but
# what these name:
#   ROLLKV_MODEL           the GGUF file of SmolLM2 (else tools/fetch_model.sh is asked)
#   ROLLKV_RECALL          the recall model (else tests/data/recall.gguf, else trained into FOLDER)
#   ROLLKV_WHEELS          a folder of Python wheels to use besides what is installed
#   ROLLKV_TRAIN_MINUTES   how long to train (4)
set -eu
[ $# -ge 1 ] || { sed -n '3,24s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
gates=${*:-a b c speed}
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

summary=$out/gates.txt
: >"$summary"
passed=0 failed=0 skipped=0
start=$(date +%s)
say() { echo "== $(($(date +%s) - start)) s: $*"; }

# note RESULT NAME [REASON]
note() {
    case $1 in
    passed) passed=$((passed + 1)) ;;
    failed) failed=$((failed + 1)) ;;
    skipped) skipped=$((skipped + 1)) ;;
    esac
    echo "$1: $2${3:+: $3}" >>"$summary"
}

# gate NAME COMMAND...: shows the output, keeps it in a log, and notes the result.
gate() {
    gate_name=$1
    shift
    say "$gate_name"
    status=0
    "$@" >"$out/$gate_name.log" 2>&1 || status=$?
    tail -n 40 "$out/$gate_name.log"
    if [ $status = 0 ]; then
        note passed "$gate_name"
    else
        note failed "$gate_name" "status $status, see $gate_name.log"
    fi
}

# Meson may be there as a Python package alone.
meson_setup() {
    if command -v meson >/dev/null 2>&1; then meson setup "$@"; else python3 -m mesonbuild.mesonmain setup "$@"; fi
}

if [ -n "${ROLLKV_WHEELS:-}" ]; then
    python3 -m pip install -q --no-index --no-deps --no-compile --target "$work/site" "$ROLLKV_WHEELS"/*.whl
    export PYTHONPATH="$work/site${PYTHONPATH:+:$PYTHONPATH}"
fi
PATH=$PATH:$(python3 -c 'import os, sys; print(os.path.dirname(sys.executable))')

build=build/gates
arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sed -n '1s/\.//p')
say "building for compute capability $arch"
if [ ! -f $build/build.ninja ]; then
    meson_setup $build --buildtype=release -Dtests=disabled -Dbench=disabled -Dcuda=enabled \
        -Dgpu_archs="$arch" -Dgpu_variants=f16_f16_d64,q8_0_q8_0_d64,q4_0_q4_0_d64 >"$out/build.log" 2>&1 ||
        { tail -n 40 "$out/build.log"; exit 1; }
fi
ninja -C $build examples/generate/rollkv-generate >>"$out/build.log" 2>&1 || { tail -n 40 "$out/build.log"; exit 1; }
program=$build/examples/generate/rollkv-generate
[ "$($program --which-device)" = cuda ] || { echo "there is no GPU that $program can use"; exit 1; }

model=${ROLLKV_MODEL:-$(tools/fetch_model.sh)}
recall=${ROLLKV_RECALL:-tests/data/recall.gguf}
text=/usr/share/common-licenses/GPL-3
if [ ! -f $text ]; then
    cat README.md include/rollkv/*.h docs/*.md CONTRIBUTING.md >"$work/text"
    text=$work/text
fi

has_python_for_a() { python3 -c 'import torch, transformers, gguf' 2>"$out/python.log"; }

# dump NAME OPTION...: the logits behind 4,096 tokens of the text.
dump() {
    dump_name=$1
    shift
    $program --model "$model" --prompt-file "$text" --max-prompt-tokens 4096 --tokens 1 --quiet \
        --device cuda --tile 64 --dump-logits "$work/$dump_name" "$@" >/dev/null
}

# Four dumps of 0.8 GB. What is read one by one went through the ring, with a window of 512 cells.
gate_a() {
    dump prefill --mode resident &&
        dump decode --mode ring --resident-cells 512 --decode-last 4000 &&
        dump q8_0 --mode ring --resident-cells 512 --decode-last 4000 --kv-type q8_0 &&
        dump q4_0 --mode ring --resident-cells 512 --decode-last 4000 --kv-type q4_0 &&
        python3 tools/gates/compare_transformers.py --model "$model" --report "$out/gate_a.json" \
            --dump "prefill=$work/prefill" --dump "decode spilled=$work/decode" \
            --also "decode q8_0=$work/q8_0" --also "decode q4_0=$work/q4_0"
}

# compare OPTION...: exit status 1 where a logit differs.
compare() {
    $program --model "$model" --prompt-file "$text" --ignore-eos --quiet --device cuda --compare --tile 64 \
        --tokens 200 "$@"
}

# A run in which nothing was streamed shows nothing.
gate_b() {
    compare --max-prompt-tokens 4000 --resident-cells 512 --kv-type "$1" >"$work/b" || { cat "$work/b"; return 1; }
    cat "$work/b"
    ! grep -q 'NOTHING WAS STREAMED' "$work/b"
}

train() {
    python3 tools/train_recall.py --out "$out/recall.gguf" --minutes "${ROLLKV_TRAIN_MINUTES:-4}"
}

gate_c() {
    python3 tools/gates/needle.py --program $program --model "$recall" --device cuda \
        --report "$out/gate_c.json" --generate-arguments "--tile 64"
}

for name in $gates; do
    case $name in
    a)
        if has_python_for_a; then
            gate gate_a gate_a
        else
            note skipped gate_a "$(tail -n 1 "$out/python.log")"
        fi ;;
    b)
        for type in f16 q8_0 q4_0; do
            gate "gate_b_$type" gate_b $type
        done ;;
    c)
        if [ ! -f "$recall" ]; then
            gate train train
            recall=$out/recall.gguf
        fi
        if [ -f "$recall" ]; then gate gate_c gate_c; else note failed gate_c "there is no recall model"; fi ;;
    speed)
        gate speed compare --device-limit-mb 64 ;;
    *)
        echo "there is no gate $name"
        exit 2 ;;
    esac
done

say "done; logs and figures are in $out"
cat "$summary"
echo "$passed passed, $failed failed, $skipped skipped" | tee -a "$summary"
[ $failed = 0 ] && [ $passed -gt 0 ]
