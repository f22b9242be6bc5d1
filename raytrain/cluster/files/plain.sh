#!/bin/bash
# A cluster by hand: one machine is the head, others join it.
#
#   on the head:         bash plain.sh head 192.0.2.10
#   on each worker:      bash plain.sh worker 192.0.2.10
#   then, on the head:   RAY_AUTH_MODE=token raytrain train EXPERIMENT --address 192.0.2.10:6379 --out /shared/runs
#   at the end, on all:  bash plain.sh stop
#                        (what this script has started, and no other Ray of yours, as `ray stop` would)
#
# 192.0.2.10 is the head's address, by which the others reach it. Every machine has the project with the same packages
# (`make setup`), the folder /shared, and the token: make it on one, and copy it to the same place on the others:
#
#   ray get-auth-token --generate && chmod 600 ~/.ray/auth_token
#   ssh OTHER 'mkdir -p -m 700 ~/.ray' && scp -p ~/.ray/auth_token OTHER:.ray/auth_token
#
# Ray's ports are for these machines alone: keep them behind a firewall. Traffic is not encrypted.
set -euo pipefail

role=${1:-} address=${2:-}
if [[ $role != stop && ($role != head && $role != worker || -z $address) ]]; then
  echo "usage: bash plain.sh head|worker HEAD_ADDRESS, or bash plain.sh stop" >&2
  exit 2
fi
# The processes of this cluster have this variable. Its folder is closed to others: Ray opens its own folders to all.
folder=/tmp/raytrain-plain-$(id -u)
if [ "$role" = stop ]; then
  found=$(grep -lsz "^RAY_TMPDIR=$folder\$" /proc/[0-9]*/environ | cut -d/ -f3 | paste -sd,) || true  # grep misses processes that end
  [ -z "$found" ] || kill -9 ${found//,/ } $(pgrep -P "$found") 2>/dev/null || true
  exit
fi
export RAY_TMPDIR=$folder RAY_AUTH_MODE=token
if [ ! -s ~/.ray/auth_token ]; then
  echo "error: no token, in ~/.ray/auth_token; see the top of this file" >&2
  exit 2
fi
install -d -m 700 "$folder"
ulimit -n 65536 2>/dev/null || true

if [ "$role" = head ]; then
  ray start --head --node-ip-address="$address" --port=6379 --disable-usage-stats
else
  ray start --address="$address:6379" --disable-usage-stats
fi
