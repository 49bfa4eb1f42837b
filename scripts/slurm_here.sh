#!/usr/bin/env bash
# A Slurm of one node on this machine, for the tests of the slurm engine. As root, from Debian's packages (13 MB).
#
#   scripts/slurm_here.sh install            apt-get; does nothing where Slurm is there
#   scripts/slurm_here.sh start DIR [CPUS]   then: export SLURM_CONF=DIR/slurm.conf
#   scripts/slurm_here.sh stop DIR
#
# Partition "low" is the default, "high" preempts it: its jobs are requeued, with 30 s between SIGTERM and SIGKILL.
set -euo pipefail

packages() {
  command -v slurmctld slurmd sbatch munged >/dev/null && return
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq && apt-get install -qq -y --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null
}

ports() { # two free ones, so that two clones can test at once
  python3 -c 'import socket; s = [socket.create_server(("", 0)) for _ in "12"]; print(*(x.getsockname()[1] for x in s))'
}

configure() {
  read -r controller daemon < <(ports)
  mkdir -p "$DIR"/{state,spool}
  cat >"$DIR/slurm.conf" <<END
ClusterName=here
SlurmctldHost=localhost
SlurmctldPort=$controller
SlurmdPort=$daemon
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
MinJobAge=300
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool
SlurmctldPidFile=$DIR/slurmctld.pid
SlurmdPidFile=$DIR/slurmd.pid
SlurmctldLogFile=$DIR/slurmctld.log
SlurmdLogFile=$DIR/slurmd.log
NodeName=localhost NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$CPUS RealMemory=64000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL PriorityTier=9 MaxTime=INFINITE State=UP
END
}

start() {
  configure
  export SLURM_CONF=$DIR/slurm.conf
  command -v munged >/dev/null || { echo "no munge: scripts/slurm_here.sh install"; exit 2; }
  if ! timeout 5 munge -n >/dev/null 2>&1; then # nobody else's runs here
    install -d -o munge -g munge -m 755 /run/munge
    [ -s /etc/munge/munge.key ] || mungekey -c
    rm -f /run/munge/munge.socket.*
    runuser -u munge -- munged && cp /run/munge/munged.pid "$DIR/munged.pid"
  fi
  slurmctld && slurmd -N localhost
  for _ in $(seq 100); do
    [ "$(sinfo -h -p low -o %T 2>/dev/null)" = idle ] && exit 0
    sleep 0.1
  done
  echo "Slurm did not come up:"; tail -n 5 "$DIR"/slurm*.log; exit 1
}

stop() {
  for name in slurmd slurmctld munged; do
    pid=$(cat "$DIR/$name.pid" 2>/dev/null) && kill "$pid" 2>/dev/null || continue
    while [ -e "/proc/$pid" ] && ! grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null; do sleep 0.1; done
  done
}

DIR=$(realpath -m "${2:-.slurm}") CPUS=${3:-2}
case ${1:-} in
  install) packages ;;
  start) start ;;
  stop) stop ;;
  *) sed -n '2,9s/^# \?//p' "$0"; exit 2 ;;
esac
