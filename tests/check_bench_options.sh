#!/bin/sh
# SPDX-License-Identifier: MIT
#
# check_bench_options.sh FOLDER: what the benches in FOLDER say to wrong options: one sentence, exit status
# 2, or 1 for files; and nothing is measured before.
set -u
bench=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
checked=0 wrong=0

# refused STATUS TEXT PROGRAM ARGUMENT...: TEXT is part of the sentence.
refused() {
    status=$1 text=$2
    shift 2
    program=$1
    shift
    "$bench/$program" "$@" >"$work/out" 2>"$work/err"
    got=$?
    checked=$((checked + 1))
    if [ $got -ne "$status" ] || [ -s "$work/out" ] || [ "$(wc -l <"$work/err")" -ne 1 ] || ! grep -qF -e "$text" "$work/err"; then
        echo "$program $*: status $got, not $status, or not one line with '$text':"
        head -n 5 "$work/out" "$work/err"
        wrong=$((wrong + 1))
    fi
}

cliff() {
    status=$1 text=$2
    shift 2
    refused "$status" "$text" rollkv-bench cliff "$@"
}

cliff 2 "there are gemma-a4b, qwen14b and custom" --shape foo
cliff 2 "there are sim, host and cuda" --executor foo
cliff 2 "a whole number from 1 to 150" --steps 1e3
cliff 2 "a whole number from 1 to 150" --steps abc
cliff 2 "a whole number from 1 to 150" --steps -1
cliff 2 "a whole number from 1 to 150" --steps=
cliff 2 "needs a value" --steps
cliff 2 "takes no value" --wait=1
cliff 2 "a number from 0.1 to 1000" --link-gbs nan
cliff 2 "a number from 0.1 to 1000" --link-gbs 5GB
cliff 2 "ascending" --points 2,1
cliff 2 "'--foo' is no option" --foo 1
cliff 2 "'foo' is no option" foo
cliff 2 "a power of two" --tile-cells 100
cliff 2 "from 16 to 4096" --tile-cells 8
cliff 2 "at most 39" --tile-cells 64 --steps 100
cliff 2 "give 0, for the rule's" --ring-mb 0.5
cliff 2 "give 0, for the rule's" --ring-mb 16,x
cliff 2 "one --ring-mb" --ring-mb 0,16 --svg x.svg
for option in "--graphs" "--cpu-threads 2" "--kv-type q8_0" "--cpu-gbs 50" "--no-op-level" "--tail-gib 1"; do
    for executor in sim host; do
        # shellcheck disable=SC2086
        cliff 2 "has no effect with --executor $executor" --executor $executor $option
    done
done
cliff 2 "has no effect with --executor host" --executor host --launch-us 3
cliff 2 "has no effect with --executor cuda" --executor cuda --jitter 0.1
cliff 2 "without --cpu-threads" --executor cuda --cpu-gbs 50
for option in sites every kv-heads head-dim; do
    cliff 2 "has no effect with --shape qwen14b" --shape qwen14b --$option 8
done
cliff 1 "can't be written" --json "$work/no/file"
cliff 1 "can't be written" --svg "$work/no/file"

refused 2 "there are sim" rollkv-bench shared --executor foo
for option in cells sites heads group steps window; do
    refused 2 "give a whole number from" rollkv-bench shared --$option abc
    refused 2 "give a whole number from" rollkv-bench shared --$option 1e3
done
refused 2 "give a number from" rollkv-bench shared --compute x
refused 2 "'--foo' is no option" rollkv-bench shared --foo 1
refused 1 "can't be written" rollkv-bench shared --json "$work/no/file"
refused 2 "there are qwen14b and gemma-a4b" rollkv-bench sizing --shape foo
refused 2 "needs a value" rollkv-bench sizing --json
refused 1 "can't be written" rollkv-bench sizing --json "$work/no/file"
refused 2 "is no option" rollkv-bench cpu-model --foo

for option in cells sequences sites steps; do
    refused 2 "give a whole number from" bench_issue --$option abc
done
refused 2 "from 1 to 4096" bench_issue --sequences 5000
refused 2 "from 0 to 1" bench_issue --tail-share 2
refused 2 "there are eager, eager-g and replayed" bench_issue --only foo
refused 2 "is no option" bench_issue --foo 1
for option in dim heads ratio threads pause-us; do
    refused 2 "give a whole number from" bench_cpu_job --$option 1e1
done
refused 2 "a multiple of 32" bench_cpu_job --dim 33
refused 2 "there are f16, bf16, fp8, q8_0 and q4_0" bench_cpu_job --type f32
refused 2 "give a number from 1 to" bench_cpu_job --gib 0.5
for option in dim heads rows threads; do
    refused 2 "give a whole number from" bench_cpu_attend --$option 1e1
done
refused 2 "a multiple of 32" bench_cpu_attend --dim 40
refused 2 "there are ref, avx2, avx512 and avx512vnni" bench_cpu_attend --kernels foo
refused 2 "give a number from" bench_cpu_attend --gib x
refused 1 "can't be written" bench_cpu_attend --json "$work/no/file"
refused 2 "give a whole number from" bench_ops --mib 1e3
refused 2 "a multiple of 32" bench_ops --dim 48
refused 2 "there are ref, avx2 and avx512" bench_ops --set foo
refused 2 "give a number from" bench_ops --seconds x
refused 1 "can't be written" bench_ops --json "$work/no/file"
refused 2 "is no option" bench_bounce --foo
refused 2 "give a whole number from" bench_numerics --cells abc
refused 2 "give a whole number from" bench_numerics --pairs 7

[ -x "$bench/bench_cuda_attend" ] || {
    refused 2 "this build has no CUDA executor" bench_cpu_attend --beside
    refused 2 "this build has no CUDA executor" bench_bounce --cuda
    refused 2 "this build has no CUDA executor" bench_issue --cuda 1
}

# In builds with CUDA; what is wrong is said without a GPU, too.
if [ -x "$bench/bench_cuda_attend" ]; then
    refused 2 "there are decode and prefill" bench_cuda_attend --only foo
    refused 2 "give a whole number from" bench_cuda_attend --runs 1e1
    refused 2 "give a number from" bench_cuda_attend --seconds x
    refused 1 "can't be written" bench_cuda_attend --json "$work/no/file"
fi
if "$bench/rollkv-bench" --help | grep -q '^  prefill'; then
    refused 2 "there are 512, 2048 and 8192" rollkv-bench prefill --rows 100
    refused 2 "there are 32768 and 131072" rollkv-bench prefill --cells 1
    refused 2 "a whole number from 1 to 7" rollkv-bench prefill --steps 8
    refused 1 "can't be written" rollkv-bench prefill --json "$work/no/file"
    refused 2 "give a number from" rollkv-bench overheads --tail-gib x
    refused 1 "can't be written" rollkv-bench overheads --json "$work/no/file"
fi

# What is no mistake, but has to be said.
checked=$((checked + 1))
"$bench/rollkv-bench" cliff --shape qwen14b --link-gbs 6.4 --points 0.5,0.75,1.1 --steps 1 2>"$work/err" |
    grep -q '^points 0.5, 0.75 and 1.1 come to the same tail' || {
    echo "cliff: points on the same tail are not named"
    wrong=$((wrong + 1))
}

echo "$checked checked, $wrong wrong"
[ $wrong -eq 0 ] && [ $checked -gt 0 ]
