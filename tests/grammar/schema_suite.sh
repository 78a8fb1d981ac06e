#!/bin/sh
# Fetches the JSON Schema test suite once, and runs TEST_PROGRAM (test_schema_suite) on it:
#
#     tests/grammar/schema_suite.sh [TEST_PROGRAM]
#
# Exits with 77 (skip) where npm or the network is missing.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${DI_GRAMMAR_ORACLES:-$root/build/grammar-oracles}

skip() {
    echo "skipped: $*"
    exit 77
}

command -v npm >/dev/null || skip "npm is not installed"
mkdir -p "$folder"
cd "$folder"
if [ ! -d suite/tests ]; then
    timeout 120 npm pack --silent json-schema-test-suite@0.0.10 >/dev/null 2>&1 ||
        skip "npm cannot fetch json-schema-test-suite@0.0.10"
    rm -rf package suite
    tar -xzf json-schema-test-suite-0.0.10.tgz
    rm json-schema-test-suite-0.0.10.tgz
    mv package suite
fi
[ $# -eq 0 ] || DI_SCHEMA_SUITE=$folder/suite/tests/draft4 exec "$1"
