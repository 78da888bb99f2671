#!/usr/bin/env bash
# A run under Slurm, on one machine or several:
#   sbatch --nodes=2 --gpus-per-node=8 launch/slurm.sh experiment=gsm8k_qwen2_5_7b hardware=slurm
#   sbatch --nodes=1 --gpus-per-node=8 launch/slurm.sh experiment=gsm8k_qwen2_5_7b hardware=split
# Two minutes before its time is up the job is asked to stop: it saves after its present optimizer step, goes back into
# the queue, and continues from that checkpoint. When it is preempted, it is asked only where Slurm's PreemptParameters
# has send_user_signal. Its folder is runs/NAME/job-NUMBER. After `scancel JOB` it saves and stays away. GRPO_IMAGE=grpo.sif runs an image of launch/Dockerfile on every machine by Apptainer, and
# any other name by pyxis and enroot. There /cache is your own cache folder (XDG_CACHE_HOME, or else ~/.cache),
# and HF_HOME is seen too.
#SBATCH --job-name=grpo
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=grpo-%j.log
#SBATCH --signal=B:TERM@120
set -uo pipefail
cd "${SLURM_SUBMIT_DIR:?start it with sbatch, from the folder of the checkout}"
run=(srun --ntasks-per-node=1 --cpu-bind=none)
if [[ ${GRPO_IMAGE:-} ]]; then
  cache=${XDG_CACHE_HOME:-$HOME/.cache}
  mkdir -p "$cache"
  mounts=$PWD:$PWD,$cache:/cache${HF_HOME:+,$HF_HOME:$HF_HOME}
  export XDG_CACHE_HOME=/cache
fi
case ${GRPO_IMAGE:-} in
  "") bash launch/setup.sh || exit
      run=("${GRPO_VENV:-.venv}/bin/python" -m grpo.cli); each=() ;;
  *.sif) run+=(apptainer exec --nv --bind "$mounts" --pwd "$PWD" "$GRPO_IMAGE" grpo); each=(hardware.shell=each) ;;
  *) run+=("--container-image=$GRPO_IMAGE" "--container-mounts=$mounts" "--container-workdir=$PWD" grpo)
     each=(hardware.shell=each) ;;
esac
# Learners and servers in containers share this key.
export GRPO_SERVER_KEY=${GRPO_SERVER_KEY:-$(head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n')}
# The run's folder is named by the job, whose number stays the same when it goes back into the queue.
export GRPO_START="job-$SLURM_JOB_ID"
"${run[@]}" launch checkpoint.resume=auto checkpoint.grace_seconds=110 "$@" "${each[@]}" &
job=$!
# srun would kill its tasks when it is asked to stop itself.
ask() { if [[ ${GRPO_IMAGE:-} ]]; then scancel --signal=TERM "$SLURM_JOB_ID"; else kill -TERM $job; fi; }
trap ask TERM
wait $job
# The signal cuts the first wait short. The last one returns the status of a job that has ended.
while kill -0 $job 2>/dev/null; do wait $job; done
wait $job
code=$?
# A job that is cancelled is completing already.
if ((code == 143)) && [[ $(squeue -h -j "$SLURM_JOB_ID" -o %T) != COMPLETING ]]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
