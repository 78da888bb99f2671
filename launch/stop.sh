#!/usr/bin/env bash
# Ends a run that was started with launch/node.sh, on every machine: it finishes its round and saves. Again: it saves
# without the rest of the round. A third time: at once.
#   bash launch/stop.sh RUN_DIR
set -euo pipefail
file=${1:?usage: bash launch/stop.sh RUN_DIR}/launcher.pid
[[ -f $file ]] || { echo "stop: there is no $file: nothing was launched there, or it has ended" >&2; exit 2; }
read -r pid host <"$file" || true
[[ $host ]] || { echo "stop: $file names no launcher: end the run's processes by their numbers" >&2; exit 2; }
[[ $host == "$(uname -n)" ]] || { echo "stop: the run's launcher is on $host: call this there" >&2; exit 2; }
words=$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") || words=
[[ $words == *grpo*" launch "* ]] || { echo "stop: the launcher, process $pid, has been killed: remove $file" >&2; exit 2; }
kill -TERM "$pid"
if grep -q '^State:\sT' "/proc/$pid/status"; then
    echo "stop: the launcher, process $pid, was stopped: it is continued so that it can end the run" >&2
    kill -CONT "$pid"
fi
