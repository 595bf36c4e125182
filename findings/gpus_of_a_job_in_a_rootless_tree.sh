#!/bin/bash
# Slurm 22.05.8 (Debian 12): with topology/tree and two switches that nothing joins, `sbatch --gpus=3` is refused with
# "Requested node configuration is not available" where the switch of the lowest weight has two GPUs and the other one
# has four. `-N3 --gpus=3` and `--gpus-per-node=1 -N3` get the other switch's nodes. (24.11.5 does the same; on 26.05.5
# the job gets them.)
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
SelectTypeParameters=CR_CPU
ProctrackType=proctrack/linuxproc
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=600
ResumeTimeout=600
TopologyPlugin=topology/tree
GresTypes=gpu
NodeName=m[0-1] CPUs=2 RealMemory=1000 Gres=gpu:1 Weight=10 Port=$((port + 2)) NodeAddr=127.0.0.1 State=CLOUD
NodeName=m[2-5] CPUs=2 RealMemory=1000 Gres=gpu:1 Weight=20 Port=$((port + 2)) NodeAddr=127.0.0.1 State=CLOUD
PartitionName=debug Nodes=m[0-5] Default=YES
CONF
printf 'SwitchName=b Nodes=m[2-5]\nSwitchName=a Nodes=m[0-1]\n' >topology.conf
echo 'NodeName=m[0-5] Name=gpu File=/dev/null' >gres.conf
slurmctld -c
for _ in $(seq 60); do scontrol ping 2>/dev/null | grep -q UP && break; sleep 0.5; done
for _ in $(seq 60); do [ "$(sinfo -h -n m0 -o %t 2>&1)" != "idle~" ] || break; sleep 0.5; done
asked() { ("$@" 2>&1 || :) | sed 's/Job [0-9]* to start at [^ ]*/Job N to start at T/' | grep -v '^$' | tail -1; }
echo "slurm $(slurmctld -V | cut -d' ' -f2), switches: a with m[0-1], b with m[2-5], a GPU a node"
two=$(asked sbatch --test-only --gpus=2 --wrap true); echo "--gpus=2: $two"
alone=$(asked sbatch --gpus=3 --wrap true); echo "--gpus=3: $alone"
nodes=$(asked sbatch --test-only --gpus=3 -N3 --wrap true); echo "--gpus=3 -N3: $nodes"
each=$(asked sbatch --test-only --gpus-per-node=1 -N3 --wrap true); echo "--gpus-per-node=1 -N3: $each"
kill "$(cat slurmctld.pid)"; for _ in $(seq 60); do [ -e slurmctld.pid ] || break; sleep 0.5; done
case "$two|$alone|$nodes|$each" in
*"on nodes m[0-1] "*"|"*"configuration is not available"*"|"*"on nodes m["[2-5]*"|"*"on nodes m["[2-5]*) echo "as described" ;;
*) echo "this has changed"; exit 1 ;;
esac
