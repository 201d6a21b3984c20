#!/usr/bin/env bash
# Measures what docs/performance.md has tables of, on this machine, and prints them in
# Markdown: for each instruction set that it has, how fast the works are, which are as
# fast as they should be, and how long the garbage collector waits. Where the processor
# multiplies pairs of bf16 (avx512bf16), the second arithmetic is measured as well.
#
#   bench/measure.sh [-r RUNS] [-t THREADS] [-l LEVELS] [-d DIR] [-q] [RIVALS]
#
#   -r  how often everything is run, of which the best counts (3)
#   -t  threads (1,2 where there are two processors)
#   -l  instruction sets ("avx512 avx2"): those of this machine, but for pure Go
#   -d  where the lines of the runs are kept (a new folder under /tmp)
#   -q  quickly: a few small works once, to see that everything works
#
# RIVALS is a Python environment that ../shared/rivals/setup.sh made; then PyTorch's and
# vLLM's kernels are timed as well, in turn with ours, and compared.
#
# Run it alone on the machine: anything beside it is in the figures. A run takes up to
# four minutes for each instruction set, eight for avx512bf16, and four with rivals.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '7,19s/^# \{0,1\}//p' "$0"; }
die() {
  echo "measure.sh: $*" >&2
  exit 2
}

runs=3 threads= levels= dir= quick=
while getopts r:t:l:d:qh flag; do
  case $flag in
    r) runs=$OPTARG ;;
    t) threads=$OPTARG ;;
    l) levels=$OPTARG ;;
    d) dir=$OPTARG ;;
    q) quick=1 runs=1 ;;
    h) usage && exit ;;
    *) usage >&2 && exit 2 ;;
  esac
done
shift $((OPTIND - 1))
(($# <= 1)) || die "one folder of rivals at most"
rivals=${1-}
[[ -z $rivals || -x $rivals/bin/python ]] || die "$rivals is no Python environment; ../shared/rivals/setup.sh makes one"
[[ -z $rivals || -f ../shared/rivals/rivals.py ]] || die "../shared/rivals is missing"

if [[ -z $threads ]]; then
  threads=1
  (($(nproc) > 1)) && threads=1,2
fi
if [[ -z $dir ]]; then dir=$(mktemp -d); else mkdir -p "$dir"; fi

export CGO_ENABLED=0
unset LAMINA_SIMD
go build -o "$dir/lamina" ./cmd/lamina
go test -c -o "$dir/bench.test" ./bench
if [[ -z $levels ]]; then
  levels=$("$dir/lamina" info -json | tr -d '[:space:]"' | sed -n 's/.*levels:\[\([^]]*\)\].*/\1/p' | tr , ' ')
  levels=${levels/% generic/}
fi
echo "measure.sh: $levels; lines of the runs in $dir" >&2

ours=(-json -threads "$threads") theirs=(-threads "$threads") collector=()
if [[ -n $quick ]]; then
  ours+=(-time 100ms -rows '^decode v3 ctx=1024 .*kv=(bf16|f32|fp8_unit) |^gemm v3 m=(1|16) n=16384 ')
  theirs+=(-quick -time 0.1)
  collector+=(-test.short)
fi

# Without AVX-512 vLLM's library lacks SGLang's product, and PyTorch packs no bf16
# weights; rivals.py prepares both before it times anything and would stop. With these
# in their place it goes on: the first product is left out, the second fails by itself.
mkdir -p "$dir/site"
cat >"$dir/site/sitecustomize.py" <<'EOF'
if "avx512f" not in open("/proc/cpuinfo").read():
    import torch
    torch.ops._C.convert_weight_packed = lambda weights: None
    torch.ops.mkldnn._reorder_linear_weight = lambda weights, rows: weights
EOF

for level in $levels; do : >"$dir/$level.jsonl"; done
: >"$dir/rivals.jsonl"
for ((run = 1; run <= runs; run++)); do
  for level in $levels; do
    echo "measure.sh: run $run of $runs, $level" >&2
    also=()
    if [[ $level == avx512bf16 ]]; then also=(-arithmetic f32,bf16 -budget 480s); fi
    LAMINA_SIMD=$level "$dir/lamina" bench "${ours[@]}" "${also[@]}" >>"$dir/$level.jsonl"
  done
  if [[ -n $rivals ]]; then
    echo "measure.sh: run $run of $runs, rivals" >&2
    # Status 3 says that vLLM's library was not there: what PyTorch did counts.
    PYTHONPATH=$dir/site "$rivals/bin/python" ../shared/rivals/rivals.py "${theirs[@]}" >>"$dir/rivals.jsonl" || (($? == 3))
  fi
done

date -u '+Measured on %Y-%m-%d.'
if [[ " $levels " != *" avx512bf16 "* ]]; then
  printf '\nThe second arithmetic was not measured: its bars are for `avx512bf16`, which %s.\n' \
    "$("$dir/lamina" info | grep -q '^levels.*avx512bf16' && echo 'was left out' || echo 'this machine lacks')"
fi
for level in $levels; do
  printf '\n## %s\n\n' "$level"
  "$dir/lamina" bench -bars "$dir/$level.jsonl"
  printf '\nThe garbage collector, forced again and again while all threads decode:\n\n```\n'
  LAMINA_SIMD=$level "$dir/bench.test" -test.run '^$' -test.bench Collector -test.benchtime 1x "${collector[@]}" | grep '^Benchmark'
  printf '```\n'
  if [[ -n $rivals ]]; then
    printf '\n### Side by side\n\n```\n'
    "$rivals/bin/python" ../shared/rivals/side_by_side.py "$dir/$level.jsonl" "$dir/rivals.jsonl"
    printf '```\n'
  fi
done
