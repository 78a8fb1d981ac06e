/* Names. What is hashed starts with a tag that no other hash of ours starts with, has a fixed
 * length or lengths in front of its parts, and is little-endian: the same on every machine.
 */
#include <endian.h>
#include <string.h>

#include "base/sha256.h"
#include "kv/kv.h"

static const char ROOT_TAG[] = "deepinfer.kv.root.1";
static const char PAGE_TAG[] = "deepinfer.kv.page.1";
static const char REPLAY_TAG[] = "deepinfer.kv.replay.1";

enum { TAG_MAX = 24 };

static uint8_t *put_bytes(uint8_t *at, const void *bytes, uint64_t n) {
    if (n) memcpy(at, bytes, (size_t)n);
    return at + n;
}

static uint8_t *put_u32(uint8_t *at, uint32_t value) {
    value = htole32(value);
    return put_bytes(at, &value, sizeof value);
}

static uint8_t *put_u64(uint8_t *at, uint64_t value) {
    value = htole64(value);
    return put_bytes(at, &value, sizeof value);
}

/* A part of any length, as its own digest: so the whole has a fixed length and fits the stack. */
static uint8_t *put_digest(uint8_t *at, const void *bytes, uint64_t n) {
    di_sha256(bytes, (size_t)n, at);
    return at + DI_SHA256_BYTES;
}

static di_kv_name name_of(const uint8_t *begin, const uint8_t *end) {
    di_kv_name name;
    di_sha256(begin, (size_t)(end - begin), name.bytes);
    return name;
}

di_kv_name di_kv_name_root(const di_kv_root *root) {
    uint8_t text[TAG_MAX + 4 * DI_SHA256_BYTES], *at = text;
    at = put_bytes(at, ROOT_TAG, sizeof ROOT_TAG - 1);
    at = put_bytes(at, root->fingerprint.bytes, sizeof root->fingerprint);
    at = put_digest(at, root->numerics, strlen(root->numerics));
    at = put_digest(at, root->kernels, strlen(root->kernels));
    at = put_digest(at, root->salt ? root->salt : "", root->salt ? root->salt_bytes : 0);
    return name_of(text, at);
}

di_kv_name di_kv_name_page(const di_kv_name *parent, const int32_t *ids, const uint64_t *content) {
    uint8_t text[TAG_MAX + sizeof *parent + DI_PAGE_TOKENS * 12], *at = text;
    at = put_bytes(at, PAGE_TAG, sizeof PAGE_TAG - 1);
    at = put_bytes(at, parent->bytes, sizeof *parent);
    for (int i = 0; i < DI_PAGE_TOKENS; i++) at = put_u32(at, (uint32_t)ids[i]);
    for (int i = 0; i < DI_PAGE_TOKENS; i++) at = put_u64(at, content ? content[i] : 0);
    return name_of(text, at);
}

void di_kv_name_chain(const di_kv_name *parent, const int32_t *ids, const uint64_t *content,
                      int32_t n_pages, di_kv_name *names) {
    for (int32_t i = 0; i < n_pages; i++) {
        int64_t first = (int64_t)i * DI_PAGE_TOKENS;
        names[i] = di_kv_name_page(i ? &names[i - 1] : parent, ids + first,
                                   content ? content + first : NULL);
    }
}

di_kv_name di_kv_name_replay(const di_kv_name *parent, int64_t position) {
    uint8_t text[TAG_MAX + sizeof *parent + 8], *at = text;
    at = put_bytes(at, REPLAY_TAG, sizeof REPLAY_TAG - 1);
    at = put_bytes(at, parent->bytes, sizeof *parent);
    at = put_u64(at, (uint64_t)position);
    return name_of(text, at);
}
