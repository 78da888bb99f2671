# Packs what the machine lacks, on one that has a network, into parts that its calls can carry.
#   bash benchmarks/airgapped/pack.sh OUT small|whole [MIB_OF_A_PART [PYTHON_VERSION]]
# Nothing is resolved: the lists beside this script are exact. PRUNE names files that are left out.
set -eu
out=$1 list=$(dirname "$0")/$2.txt part=${3:-56} python=${4:-3.12}
# Kernels that a Hopper GPU does not use for a dense text model. PRUNE= keeps them for other GPUs and mixtures of experts.
: "${PYTHON:=python3}" "${PRUNE=vllm/vllm_flash_attn/_vllm_fa2_C* vllm/vllm-rs* vllm/third_party/flashmla* \
  vllm/_moe_C_stable_libtorch* vllm/_qutlass_C* vllm/third_party/fmha_sm100}"
site=$out/site sources='^(deepspeed|antlr4-python3-runtime)=='
mkdir -p "$site" "$out/built"
{ grep -hE '^[a-z]' "$list"; [ "$2" = small ] || grep -hE '^[a-z]' "$(dirname "$0")/small.txt"; } >"$out/pins"
# Pure Python that is published as sources only.
grep -E "$sources" "$out/pins" | xargs "$PYTHON" -m pip wheel -q --no-deps -w "$out/built"
platforms=()
for glibc in 39 35 34 31 28 27 24 17 12 5; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
grep -vE "$sources" "$out/pins" | xargs "$PYTHON" -m pip install -q --no-deps --no-compile --upgrade --target "$site" \
  --only-binary=:all: --implementation cp --python-version "$python" "${platforms[@]}" "$out"/built/*.whl
for pattern in bin $PRUNE; do
  # shellcheck disable=SC2086
  rm -rf "$site"/$pattern
done
# Kernels for other versions of Python.
find "$site" -path '*deep_gemm*' -name '*.cpython-*.so' ! -name "*.cpython-${python/./}-*" -delete
rm -f "$out"/site.tar.xz.part*
tar -C "$site" -cf - . | xz -T0 -6 | split -b "${part}M" -d -a 2 - "$out/site.tar.xz.part"
ls -l "$out"/site.tar.xz.part*
