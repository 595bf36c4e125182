#!/bin/bash
# Slurm 22.05.8 (Debian 12): with PreemptMode=REQUEUE a preempted batch job is queued again, but not if its partition (or QOS)
# has a GraceTime and the job does what the grace is for. The SIGTERM at the grace's start goes to the job's steps, the script
# goes on to its end and saves, and the job is over: COMPLETED, Restarts=0, nothing tells that it was preempted. Without a
# GraceTime the same job is PENDING again, Restarts=1. So a job that ends quickly when it is warned loses the requeue.
# Its packages are unpacked in a temporary folder, with a munged of its own; nothing is installed. Run it as root on
# Debian 12. It ends with 0 as long as it is so, with 1 when it changes, and with 2 where the packages cannot be had.
set -eu
version=22.05.8-4+deb12u3
work=$(mktemp -d); cd "$work"
end() { for file in "$work"/*.pid; do [ ! -e "$file" ] || kill "$(cat "$file")" 2>/dev/null || :; done; sleep 2; rm -rf "$work"; }
trap end EXIT
chmod 755 "$work"
apt-get download -qq "slurmctld=$version" "slurmd=$version" "slurm-client=$version" "slurm-wlm-basic-plugins=$version" \
    munge libmunge2 >/dev/null 2>&1 || { echo "the packages of $version cannot be had here"; exit 2; }
for file in *.deb; do dpkg -x "$file" root; done
lib=$work/root/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH=$lib/slurm-wlm:$lib PATH=$work/root/usr/sbin:$work/root/usr/bin:$PATH SLURM_CONF=$work/slurm.conf
mkdir -m 755 munge state spool out; head -c 128 /dev/urandom >munge/key; chmod 400 munge/key
munged --force --key-file=munge/key --socket=munge/socket --pid-file="$work/munged.pid" --log-file=munge/log \
    --seed-file=munge/seed >/dev/null 2>&1
port=$((20000 + $$ % 20000))
cat >slurm.conf <<CONF
ClusterName=find
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket,cred_expire=10
PluginDir=$lib/slurm-wlm
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/log
SlurmdLogFile=$work/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
SlurmdParameters=config_overrides
NodeName=m0 CPUs=1 Port=$((port + 2)) NodeAddr=127.0.0.1
PartitionName=grace Nodes=m0 PriorityTier=1 GraceTime=60 Default=YES
PartitionName=none Nodes=m0 PriorityTier=1 GraceTime=0
PartitionName=urgent Nodes=m0 PriorityTier=9 PreemptMode=OFF
CONF
slurmctld -c
slurmd -N m0
until_is() { # REGEX COMMAND…
    for _ in $(seq 240); do "${@:2}" 2>/dev/null | tr '\n' ' ' | grep -qE "^($1) ?$" && return 0; sleep 0.5; done
    echo "no $1 from ${*:2}"; tail -n 5 log; tail -n 5 slurmd.log; exit 2
}
until_is "idle" sinfo -h -p urgent -o %t
field() { scontrol -o show job "$1" | grep -o " $2=[^ ]*" | cut -d= -f2; }
script='trap "echo the script saves" TERM; echo start; srun --overlap sleep 300; echo after the step; sleep 1'
preempted() {
    job=$(sbatch --parsable --chdir=/ -p "$1" -o "$work/out/$1" --wrap "$script")
    until_is "RUNNING" field "$job" JobState
    until_is ".*start.*" cat "out/$1"; until_is ".*$job.0.*" squeue -h -s -o %i
    urgent=$(sbatch --parsable --chdir=/ -p urgent -o /dev/null --wrap true)
    until_is "COMPLETED" field "$urgent" JobState
    until_is "COMPLETED|FAILED|PENDING|RUNNING" field "$job" JobState
    said=$(grep -c "after the step" "out/$1" || :)
    echo "GraceTime of $1: $(field "$job" JobState), Restarts=$(field "$job" Restarts), the script went on: $said"
    result=$(field "$job" JobState)-$(field "$job" Restarts)-$said
    scancel "$job"; until_is "0" sh -c "squeue -h -t R,CG,PD -o %i | wc -l"; until_is "idle" sinfo -h -p urgent -o %t
}
echo "slurm $(slurmctld -V | cut -d' ' -f2)"
preempted grace; grace=$result
preempted none; none=$result
kill "$(cat slurmd.pid)" "$(cat slurmctld.pid)"; for _ in $(seq 60); do [ -e slurmctld.pid ] || break; sleep 0.5; done
case "$grace|$none" in
COMPLETED-0-1\|PENDING-1-? | COMPLETED-0-1\|RUNNING-1-?) echo "as described" ;;
*) echo "this has changed: $grace|$none"; exit 1 ;;
esac
