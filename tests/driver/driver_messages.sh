#!/bin/sh
# What a build with CUDA says where its GPU cannot be had: one line each, and the CPU where that is
# allowed. Drivers are made up (stub_driver.c), so that neither a driver nor a GPU is needed.
#
#     driver_messages.sh PROGRAM FOLDER_OF_LIBCUDA
set -eu
program=$1
LD_LIBRARY_PATH=$2
export LD_LIBRARY_PATH
model=$(cd "$(dirname "$0")/../.." && pwd)/models/demo
unset CUDA_VISIBLE_DEVICES
failed=0

say() { # BACKEND: what a run of one token says on stderr; *status
    status=0
    said=$("$program" run "$model" hello --backend "$1" --max-tokens 1 --temperature 0 \
        --threads 1 --context 64 2>&1 >/dev/null </dev/null) || status=$?
}

check() { # NAME VERSION TEXT
    STUB_DRIVER_VERSION=$2
    export STUB_DRIVER_VERSION
    say cuda
    if [ $status -ne 1 ] || [ "$(printf '%s\n' "$said" | wc -l)" -ne 1 ] ||
        [ "${said#*"cuda backend: $3"}" = "$said" ] ||
        [ "${said#*"; the backends auto and cpu do without one"}" = "$said" ]; then
        echo "[  FAILED  ] $1, --backend cuda: status $status, $said"
        failed=1
        return
    fi
    say auto
    if [ $status -ne 0 ] || [ "${said#*"backend: cpu ($3"}" = "$said" ]; then
        echo "[  FAILED  ] $1, --backend auto: status $status, $said"
        failed=1
        return
    fi
    echo "[       OK ] $1"
}

check "no driver" 0 "no NVIDIA driver is installed"
check "a driver that is too old" 11040 "the NVIDIA driver is for CUDA 11.4; this build needs one for CUDA "
check "no device" 99000 "this machine has no NVIDIA GPU"
exit $failed
