#!/bin/sh
# What a build with CUDA says where its GPU cannot be had: one line each, and the CPU where that is
# allowed. Drivers are made up (stub_driver.c), so that neither a driver nor a GPU is needed.
#
# What kernelcheck makes of it: skipped where there is nothing, failed where a driver is that fails.
#
#     driver_messages.sh PROGRAM FOLDER_OF_LIBCUDA KERNELCHECK
set -eu
program=$1
kernelcheck=$3
LD_LIBRARY_PATH=$2
export LD_LIBRARY_PATH
model=$(cd "$(dirname "$0")/../.." && pwd)/models/demo
unset CUDA_VISIBLE_DEVICES STUB_DRIVER_INIT
failed=0

say() { # BACKEND: what a run of one token says on stderr; *status
    status=0
    said=$("$program" run "$model" hello --backend "$1" --max-tokens 1 --temperature 0 \
        --threads 1 --context 64 2>&1 >/dev/null </dev/null) || status=$?
}

check() { # NAME VERSION TEXT STATUS_OF_KERNELCHECK
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
    status=0
    said=$("$kernelcheck" --backend cuda --op rewind --rounds 1 2>&1) || status=$?
    if [ $status -ne "$4" ] || [ "${said#*"cuda backend: $3"}" = "$said" ]; then
        echo "[  FAILED  ] $1, kernelcheck: status $status, $said"
        failed=1
        return
    fi
    echo "[       OK ] $1"
}

check "no driver" 0 "no NVIDIA driver is installed" 77
check "a driver that is too old" 11040 \
    "the NVIDIA driver is for CUDA 11.4; this build needs one for CUDA " 1
check "no device" 99000 "this machine has no NVIDIA GPU" 77
export STUB_DRIVER_INIT
STUB_DRIVER_INIT=2 # CUDA_ERROR_OUT_OF_MEMORY
check "a driver without memory" 99000 "the NVIDIA driver says: out of memory" 1
STUB_DRIVER_INIT=999 # CUDA_ERROR_UNKNOWN
check "a driver that fails" 99000 "the NVIDIA driver says: unknown error" 1
exit $failed
