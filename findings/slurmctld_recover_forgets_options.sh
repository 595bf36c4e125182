#!/bin/bash
# Slurm 22.05.8 (Debian 12): `slurmctld -R`, which its manual says recovers the full state of partitions, brings a
# partition that `scontrol create` has made back without DefMemPerCPU, JobDefaults and TRESBillingWeights; MaxTime,
# AllowGroups and GraceTime stay. A node's weight that `scontrol update` has set falls back to slurm.conf's.
# Its packages are unpacked in a temporary folder, with a munged of its own; nothing is installed. Run it as root on
# Debian 12. It ends with 0 as long as it is so, with 1 when it changes, and with 2 where the packages cannot be had.
set -eu
version=22.05.8-4+deb12u3
work=$(mktemp -d); cd "$work"
end() { for file in "$work"/*.pid; do [ ! -e "$file" ] || kill "$(cat "$file")" 2>/dev/null || :; done; sleep 1; rm -rf "$work"; }
trap end EXIT
chmod 755 "$work"
apt-get download -qq "slurmctld=$version" "slurm-client=$version" "slurm-wlm-basic-plugins=$version" munge libmunge2 \
    >/dev/null 2>&1 || { echo "the packages of $version cannot be had here"; exit 2; }
for file in *.deb; do dpkg -x "$file" root; done
lib=$work/root/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH=$lib/slurm-wlm:$lib PATH=$work/root/usr/sbin:$work/root/usr/bin:$PATH SLURM_CONF=$work/slurm.conf
mkdir -m 755 munge state; head -c 128 /dev/urandom >munge/key; chmod 400 munge/key
munged --force --key-file=munge/key --socket=munge/socket --pid-file="$work/munged.pid" --log-file=munge/log \
    --seed-file=munge/seed >/dev/null 2>&1
port=$((20000 + $$ % 20000))
cat >slurm.conf <<CONF
ClusterName=find
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
PluginDir=$lib/slurm-wlm
StateSaveLocation=$work/state
SlurmctldPidFile=$work/slurmctld.pid
SlurmctldLogFile=$work/log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ProctrackType=proctrack/linuxproc
ReturnToService=2
NodeName=m[0-1] CPUs=2 RealMemory=1000 Port=$((port + 2)) NodeAddr=127.0.0.1
PartitionName=debug Nodes=m[0-1] Default=YES
CONF
start() {
    slurmctld "$@"
    for _ in $(seq 60); do scontrol ping 2>/dev/null | grep -q UP && return; sleep 0.5; done
    echo "slurmctld does not answer"; tail -5 log; exit 2
}
stop() { kill "$(cat slurmctld.pid)"; for _ in $(seq 60); do [ -e slurmctld.pid ] || return 0; sleep 0.5; done; }
seen() {
    scontrol -o show partition own | tr ' ' '\n' |
        grep -E '^(MaxTime|AllowGroups|GraceTime|DefMemPerCPU|JobDefaults|TRESBillingWeights)=' | sort | tr '\n' ' '
    scontrol -o show node m1 | grep -o ' Weight=[0-9]*'
}
start -c
scontrol create PartitionName=own Nodes=m1
scontrol update PartitionName=own MaxTime=90 AllowGroups=root GraceTime=5 DefMemPerCPU=77 JobDefaults=DefCpuPerGPU=2 \
    TRESBillingWeights=CPU=2.0
scontrol update NodeName=m1 Weight=77
before=$(seen); echo "slurm $(slurmctld -V | cut -d' ' -f2), before: $before"
stop; start -R
after=$(seen); echo "after slurmctld -R: $after"
stop
case "$before|$after" in
*"DefMemPerCPU=77 GraceTime=5 JobDefaults=DefCpuPerGPU=2"*TRESBillingWeights=CPU=2.0*Weight=77"|"*"AllowGroups=root"*"GraceTime=5"*"MaxTime=01:30:00"*)
    case "$after" in *DefMemPerCPU=* | *DefCpuPerGPU* | *TRESBillingWeights=* | *Weight=77*) echo "this has changed"; exit 1 ;; esac
    echo "as described" ;;
*) echo "this has changed"; exit 1 ;;
esac
