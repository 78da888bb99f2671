#!/usr/bin/env bash
# A run under Slurm, on one machine or several:
#   sbatch --nodes=2 --gpus-per-node=8 launch/slurm.sh experiment=gsm8k_qwen2_5_7b hardware=slurm
#   sbatch --nodes=1 --gpus-per-node=8 launch/slurm.sh experiment=gsm8k_qwen2_5_7b hardware=split
# Two minutes before its time is up, or when it is preempted, the job is asked to stop: it saves, goes back into the
# queue, and continues from that checkpoint (checkpoint.resume=auto). Its folder is runs/NAME/job-NUMBER. `scancel JOB`
# ends all of it.
#SBATCH --job-name=grpo
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=grpo-%j.log
#SBATCH --signal=B:TERM@120
set -uo pipefail
cd "${SLURM_SUBMIT_DIR:?start it with sbatch, from the folder of the checkout}"
bash launch/setup.sh || exit
# The run's folder is named by the job, whose number stays the same when it goes back into the queue.
export GRPO_START="job-$SLURM_JOB_ID"
"${GRPO_VENV:-.venv}/bin/python" -m grpo.cli launch checkpoint.resume=auto "$@" &
run=$!
trap 'kill -TERM $run' TERM
wait $run
code=$?
# The signal cuts the first wait short.
while kill -0 $run 2>/dev/null; do wait $run; code=$?; done
if ((code == 143)); then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
