#!/bin/sh
# Runs a test of the server that is written for node.
#
#     run_node.sh PROGRAM SCRIPT
#
# A script whose second line is "// npm: PACKAGE@VERSION..." gets these packages in build/npm-NAME,
# fetched once; where that cannot be done it is skipped (77), as without node.
set -eu
PROGRAM=$1
script=$2
SOURCE=$(cd "$(dirname "$0")/../.." && pwd)
export PROGRAM SOURCE

skip() {
    echo "[  SKIPPED ] $(basename "$script" .mjs): $*"
    exit 77
}

command -v node >/dev/null || skip "node is not installed"
packages=$(sed -n '2s|^// npm: ||p' "$script")
if [ -n "$packages" ]; then
    command -v npm >/dev/null || skip "npm is not installed"
    NODE_FOLDER=$SOURCE/build/npm-$(basename "$script" .mjs)
    export NODE_FOLDER
    mkdir -p "$NODE_FOLDER"
    if [ "$(cat "$NODE_FOLDER/fetched" 2>/dev/null)" != "$packages" ]; then
        [ -f "$NODE_FOLDER/package.json" ] || echo '{"private": true}' >"$NODE_FOLDER/package.json"
        # shellcheck disable=SC2086  # a list of words
        (cd "$NODE_FOLDER" && timeout 120 npm install --silent --ignore-scripts --no-audit --no-fund \
            $packages >/dev/null 2>&1) || skip "npm cannot fetch $packages"
        echo "$packages" >"$NODE_FOLDER/fetched"
    fi
fi
exec node "$script"
