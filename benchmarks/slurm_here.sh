#!/usr/bin/env bash
# A Slurm of two nodes on this one machine, for trying launch/slurm.sh (as root; Debian: slurmctld slurmd slurm-client
# munge).  bash benchmarks/slurm_here.sh start|stop
set -euo pipefail
state=/tmp/slurm-here
export SLURM_CONF=$state/slurm.conf
if [[ ${1:-} == stop ]]; then
  for each in slurmctld slurmd-one slurmd-two; do [[ -f $state/$each.pid ]] && kill "$(<"$state/$each.pid")" || true; done
  exit
fi
mkdir -p "$state/spool" "$state/ctld"
host=$(hostname -s)
cores=$(nproc)
memory=$(free -m | awk '/^Mem/ {print $2}')
cat >"$SLURM_CONF" <<EOF
ClusterName=here
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
StateSaveLocation=$state/ctld
SlurmdSpoolDir=$state/spool/%n
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd-%n.pid
SlurmctldLogFile=$state/slurmctld.log
SlurmdLogFile=$state/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=10
SchedulerParameters=batch_sched_delay=1,sched_interval=2
JobRequeue=1
NodeName=one NodeHostname=$host NodeAddr=127.0.0.1 Port=17001 CPUs=$cores RealMemory=$memory
NodeName=two NodeHostname=$host NodeAddr=127.0.0.1 Port=17002 CPUs=$cores RealMemory=$memory
PartitionName=all Nodes=one,two Default=YES MaxTime=INFINITE State=UP
EOF
grep -q "127.0.0.1 one two" /etc/hosts || echo "127.0.0.1 one two" >>/etc/hosts
mkdir -p /run/munge && chown munge /run/munge
pgrep munged >/dev/null || runuser -u munge -- munged
slurmctld
for node in one two; do slurmd -N "$node"; done
sleep 3
sinfo
echo "export SLURM_CONF=$SLURM_CONF"
