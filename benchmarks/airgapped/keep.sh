# Keeps a carried part on the machine for the calls that come after this one, while it stays warm.
#   bash benchmarks/airgapped/keep.sh FOLDER_OF_A_PART
mkdir -p /tmp/grpo-parts && cp "$1"/site.tar.xz.part* /tmp/grpo-parts/ && ls -l /tmp/grpo-parts
