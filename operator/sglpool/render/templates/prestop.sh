#!/bin/sh
# preStop hook of the engine container: gives the router time to take this pod out before SIGTERM.
#
# Usage: prestop.sh SECONDS RUN_DIR
#
# SGLang goes on accepting requests after SIGTERM, so the router must be out first. There is nothing to wait
# for when liveness has given the engine up (marker "killing") or it never served (no marker "warm").
set -eu

seconds=$1
run_dir=$2

if [ -e "$run_dir/killing" ]; then
    exit 0
fi
# From here on liveness must not act: a planned stop wins over a restart.
: > "$run_dir/draining"
if [ -e "$run_dir/warm" ]; then
    sleep "$seconds"
fi
