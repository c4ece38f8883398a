#!/usr/bin/env bash
# Submit the jobs of one run: server, workers, producer, and the end of the server. docs/slurm.md explains them.
#
# usage: start.sh FOLDER INPUT OUTPUT NUM_WORKERS VLLM_FLAGS...
#
# FOLDER lies on a shared file system. It keeps the password, the address and the data of Redis, and the logs. The same
# command again continues a run whose jobs have ended. WORKER_OPTIONS has further options of sbatch for the workers.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
folder=$(realpath -m "$1") input=$(realpath "$2") output=$(realpath -m "$3") num_workers=$4
shift 4

umask 077 # only you may read the password
mkdir -p "$folder"/{log,data}
[ -s "$folder/password" ] || head -c 32 /dev/urandom | od -A n -v -t x1 | tr -d ' \n' >"$folder/password"
rm -f "$folder/address"
cp "$here/connect.sh" "$folder/"

submit() { # name, then the options of sbatch
  sbatch --parsable --chdir="$folder" --job-name="gristmill-$1" --open-mode=append --requeue "${@:2}"
}

server=$(submit server --output="$folder/log/server.log" "$here/server.sbatch")
# shellcheck disable=SC2086  # WORKER_OPTIONS has several words
workers=$(submit worker --output="$folder/log/worker-%a.log" --dependency="after:$server" \
  --array="0-$((num_workers - 1))" ${WORKER_OPTIONS:-} "$here/worker.sbatch" "$@")
producer=$(submit producer --output="$folder/log/producer.log" --dependency="after:$server" \
  "$here/producer.sbatch" "$workers" "$input" "$output")
end=$(submit end --output="$folder/log/end.log" --dependency="afterany:$workers:$producer" "$here/end.sbatch" "$server")
echo "$server $workers $producer $end" >"$folder/jobs"
echo "server $server, workers $workers, producer $producer; logs in $folder/log"
