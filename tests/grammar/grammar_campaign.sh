#!/bin/sh
# Fetches the validator (npm: ajv, ajv-formats) once, and runs TEST_PROGRAM (test_grammar_campaign):
#
#     tests/grammar/grammar_campaign.sh TEST_PROGRAM
#
# Exits with 77 (skip) where npm, node or the network is missing.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${DI_GRAMMAR_ORACLES:-$root/build/grammar-oracles}

skip() {
    echo "skipped: $*"
    exit 77
}

for tool in npm node; do
    command -v $tool >/dev/null || skip "$tool is not installed"
done
program=$(realpath "$1")
mkdir -p "$folder"
cd "$folder"
if [ ! -d node_modules/ajv-formats ]; then
    [ -f package.json ] || echo '{"private": true}' >package.json
    timeout 120 npm install --silent --ignore-scripts --no-audit --no-fund ajv@8.20.0 ajv-formats@3.0.1 \
        >/dev/null 2>&1 || skip "npm cannot fetch ajv and ajv-formats"
fi
cp "$root/tests/grammar/judge.mjs" judge.mjs
DI_GRAMMAR_JUDGE="node $folder/judge.mjs" exec "$program"
