#!/bin/bash
# One training under Slurm: `sbatch slurm.sh`. `ray symmetric-run` starts Ray on every node, trains from the first, stops Ray.
#
# Needs a home folder and a folder for runs that all nodes mount, and the project with its packages (`make setup`).
# A token, once: ray get-auth-token --generate && chmod 600 ~/.ray/auth_token
#SBATCH --job-name=raytrain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --time=01:00:00
#SBATCH --requeue
set -euo pipefail

project=$HOME/raytrain  # EDIT
runs=/shared/runs  # EDIT
train=(raytrain train experiments/digits.py --scaling.workers "$SLURM_JOB_NUM_NODES" --out "$runs")  # EDIT
train+=(--name "slurm-$SLURM_JOB_ID" --resume)  # a job that is queued again, as after the loss of a node, goes on with its run

cd "$project"
export PATH=$project/.venv/bin:$PATH
export RAY_AUTH_MODE=token
export RAY_TMPDIR=/tmp/ray-$SLURM_JOB_ID  # sockets need a short path on a local disk

srun --ntasks-per-node=1 install -d -m 700 "$RAY_TMPDIR"  # Ray opens its own folders to every user of a node
# The head's address and not its name, which a node may take for its own 127.0.0.1. symmetric-run refuses nodes where a Ray
# of yours runs, and ends with `ray stop`, which ends all of them: --exclusive keeps your other jobs off these nodes.
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
address=$(srun --nodes=1 --ntasks=1 --nodelist="${hosts%%$'\n'*}" hostname --ip-address)
export RAY_ADDRESS=${address%% *}:6379

# symmetric-run ends with 0 where Ray did not start, and nothing was trained. So the training leaves its own status.
status=$runs/slurm-$SLURM_JOB_ID.status
mkdir -p "$runs"
rm -f "$status"
export status
command=$(printf '%q ' "${train[@]}")
srun --kill-on-bad-exit=0 ray symmetric-run --address "$RAY_ADDRESS" --min-nodes "$SLURM_JOB_NUM_NODES" \
  --num-cpus "$SLURM_CPUS_PER_TASK" --num-gpus "${SLURM_GPUS_ON_NODE:-0}" --disable-usage-stats \
  -- bash -c "$command; echo \$? > \$status" || true

if [ ! -s "$status" ]; then
  echo "error: Ray did not start on all nodes, nothing was trained; see the output above" >&2
  exit 1
fi
exit "$(cat "$status")"
