#!/bin/sh
# Runs TEST_PROGRAM (test_grammar_released) on the released tokenizer, which is rebuilt first where it is
# missing: see tests/text/released_tokenizer.sh. Exits with 77 (skip) where that cannot be done.
exec sh "$(dirname "$0")/../text/released_tokenizer.sh" "$@"
