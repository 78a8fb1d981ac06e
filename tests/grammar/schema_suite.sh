#!/bin/sh
# Fetches the JSON Schema test suite once, and runs TEST_PROGRAM (test_schema_suite) on it:
#
#     tests/grammar/schema_suite.sh [TEST_PROGRAM]
#
# npm has it for draft 4, Debian's libtest-json-schema-acceptance-perl for every draft up to 2020-12; the
# package is unpacked, not installed. What cannot be fetched is skipped, and without npm everything (77).
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
# Debian 12 has 1.019; another version has other cases than the test's lists are about.
package=libtest-json-schema-acceptance-perl
drafts=$folder/drafts/usr/share/perl5/auto/share/dist/Test-JSON-Schema-Acceptance/tests
if [ ! -d "$drafts" ] && command -v apt-get dpkg-deb >/dev/null; then
    # In a folder of its own, which apt's own user may write to.
    if (download=$(mktemp -d) && cd "$download" && chmod 755 . && trap 'rm -r "$download"' EXIT &&
        timeout 120 apt-get download -qq "$package=1.019-1" >/dev/null 2>&1 &&
        dpkg-deb -x "$package"_1.019-1_all.deb "$folder/drafts.new"); then
        rm -rf "$folder/drafts"
        mv "$folder/drafts.new" "$folder/drafts"
    fi
fi
if [ -d "$drafts" ]; then
    export DI_SCHEMA_DRAFTS="$drafts"
else
    echo "apt-get cannot download $package 1.019-1: only draft 4 is tested"
fi
[ $# -eq 0 ] || DI_SCHEMA_SUITE=$folder/suite/tests/draft4 exec "$1"
