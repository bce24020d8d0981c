#!/bin/bash
# A run that trains on the nodes of a Slurm job: the first one runs `grpo train`, each of the others `grpo train-node`.
#
#   SHARED=/lustre/me/shared GRPO_HOME=/home/me/runs NCCL_SOCKET_IFNAME=ib0 sbatch deployments/training/slurm.sh run.yaml
#
# SHARED is a folder that all nodes see, GRPO_HOME the home of the run on the first node, and NCCL_SOCKET_IFNAME the
# interface of a network that only the nodes reach. On nodes without GPUs set GLOO_SOCKET_IFNAME and PROCESSES instead.
#SBATCH --job-name=grpo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
set -euo pipefail

config=${1:?config of the run}
export GRPO_NODES=${SHARED:?a folder that all nodes see}/nodes-$SLURM_JOB_ID
mkdir -p -m 700 "$GRPO_NODES"

others=$((SLURM_JOB_NUM_NODES - 1))
srun --nodes="$others" --ntasks="$others" --relative=1 grpo train-node &
following=$!
trap 'kill "$following" 2> /dev/null || true; wait "$following" || true' EXIT

srun --nodes=1 --ntasks=1 --relative=0 grpo train "$config" --set store="$SHARED/artifacts" \
  --set training.nodes="$SLURM_JOB_NUM_NODES" --set training.processes="${PROCESSES:-8}" \
  --set training.sharding=sharded
