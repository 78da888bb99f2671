#!/usr/bin/env bash
# Ends a run that was started with launch/node.sh, on every machine: it finishes its round and saves. Again: at once.
#   bash launch/stop.sh RUN_DIR
set -euo pipefail
file=${1:?usage: bash launch/stop.sh RUN_DIR}/launcher.pid
[[ -f $file ]] || { echo "stop: there is no $file: nothing was launched there, or it has ended" >&2; exit 2; }
pid=$(<"$file")
tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q "grpo.cli launch" || { echo "stop: process $pid is gone" >&2; exit 2; }
kill -TERM "$pid"
