/* Which tokenizer.json files are read. What is known to change ids and is not done here is refused
 * by its name: a tokenizer that is nearly right gives a model that is nearly right, and nobody
 * finds out why.
 */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "text/pretokenize.h"
#include "text/tokenizer_internal.h"

#define ADVICE "only byte-level BPE as DeepSeek releases it is supported"

static quoted shorten(const char *text, size_t size, const char *mark) {
    quoted q;
    size_t n = (size_t)snprintf(q.text, sizeof q.text, "%s", mark);
    bool cut = false;
    for (size_t at = 0, length; at < size; at += length) {
        uint32_t code = 0;
        length = di_utf8_decode(text + at, size - at, &code);
        if (n + 4 > 64) {
            cut = true;
            break;
        }
        if (length == 0 || code < 0x20 || code == 0x7F) {
            length = 1;
            n += (size_t)snprintf(q.text + n, 5, "\\x%02x", (unsigned char)text[at]);
        } else {
            memcpy(q.text + n, text + at, length);
            n += length;
        }
    }
    snprintf(q.text + n, sizeof q.text - n, "%s%s", cut ? "..." : "", mark);
    return q;
}

quoted quote__text(const char *text, size_t size) { return shorten(text, size, "\""); }

quoted quote__json(const di_json *value) {
    static const char *const words[] = {"null",     "false",  "true",     "a number",
                                        "a string", "a list", "an object"};
    if (value && value->type == DI_JSON_STRING) return quote__text(value->text, value->length);
    if (value && value->type == DI_JSON_NUMBER) return shorten(value->text, value->length, "");
    quoted q;
    snprintf(q.text, sizeof q.text, "%s", value ? words[value->type] : "nothing");
    return q;
}

/* Absent, null, false, 0 and "" all mean: not used. */
static bool is_off(const di_json *value) {
    double number;
    if (!value || value->type == DI_JSON_NULL || value->type == DI_JSON_FALSE) return true;
    if (di_json_double(value, &number)) return number == 0;
    return value->type == DI_JSON_STRING && value->length == 0;
}

static bool has_bool(const di_json *object, const char *key, bool want) {
    bool value;
    return di_json_bool(di_json_get(object, key), &value) && value == want;
}

/* Every member of `object` whose key is not in `known` (NULL-terminated) must be off. */
static di_status check_others(const di_json *object, const char *const *known, const char *whose,
                              const char *what, di_error *error) {
    for (const di_json *item = object->first; item; item = item->next) {
        const char *const *key = known;
        while (*key &&
               (strlen(*key) != item->key_length || memcmp(*key, item->key, item->key_length))) {
            key++;
        }
        if (*key || is_off(item)) continue;
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "%s: %s%s is set to %s, which is not supported: " ADVICE, what,
                       quote__text(item->key, item->key_length).text, whose,
                       quote__json(item).text);
    }
    return DI_OK;
}

static di_status check_model(const di_json *model, const char *what, di_error *error) {
    static const char *const known[] = {"type", "vocab", "merges", NULL};
    if (!model || model->type != DI_JSON_OBJECT) {
        return di_fail(
            error, DI_ERR_INVALID,
            "%s: no \"model\" object: this is not a tokenizer.json of the tokenizers library",
            what);
    }
    const di_json *type = di_json_get(model, "type");
    if (!di_json_is_string(type, "BPE")) {
        return di_fail(error, DI_ERR_UNSUPPORTED, "%s: model.type is %s, expected \"BPE\": " ADVICE,
                       what, quote__json(type).text);
    }
    return check_others(model, known, " of model", what, error);
}

/* The items of a Sequence; `list` is the key that holds them. NULL when it is none. */
static const di_json *sequence(const di_json *step, const char *list) {
    const di_json *items =
        di_json_is_string(di_json_get(step, "type"), "Sequence") ? di_json_get(step, list) : NULL;
    return items && items->type == DI_JSON_ARRAY ? items : NULL;
}

static di_status check_normalizer(const di_json *root, const char *what, di_error *error) {
    const di_json *normalizer = di_json_get(root, "normalizer");
    const di_json *items = sequence(normalizer, "normalizers");
    if (is_off(normalizer) || (items && items->length == 0)) return DI_OK;
    const di_json *named = items && items->first ? items->first : normalizer;
    return di_fail(error, DI_ERR_UNSUPPORTED,
                   "%s: the file has a normalizer, %s, and none is supported: " ADVICE, what,
                   quote__json(di_json_get(named, "type")).text);
}

static bool is_byte_level(const di_json *step) {
    return di_json_is_string(di_json_get(step, "type"), "ByteLevel");
}

static di_status check_split(const di_json *step, int number, const char *what, di_error *error) {
    const di_json *type = di_json_get(step, "type");
    if (!di_json_is_string(type, "Split")) {
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "%s: step %d of pre_tokenizer is %s, expected \"Split\": " ADVICE, what,
                       number + 1, quote__json(type).text);
    }
    const di_json *pattern = di_json_get(di_json_get(step, "pattern"), "Regex");
    if (!pattern || pattern->type != DI_JSON_STRING ||
        !di_pretokenize_is_step(pattern->text, pattern->length, number)) {
        return di_fail(
            error, DI_ERR_UNSUPPORTED,
            "%s: step %d of pre_tokenizer splits by the regex %s, which is not DeepSeek's: " ADVICE,
            what, number + 1, quote__json(pattern).text);
    }
    const di_json *behavior = di_json_get(step, "behavior");
    if (!di_json_is_string(behavior, "Isolated")) {
        return di_fail(
            error, DI_ERR_UNSUPPORTED,
            "%s: step %d of pre_tokenizer has behavior %s, expected \"Isolated\": " ADVICE, what,
            number + 1, quote__json(behavior).text);
    }
    if (is_off(di_json_get(step, "invert"))) return DI_OK;
    return di_fail(error, DI_ERR_UNSUPPORTED, "%s: step %d of pre_tokenizer is inverted: " ADVICE,
                   what, number + 1);
}

static di_status check_pre_tokenizer(const di_json *root, const char *what, di_error *error) {
    const di_json *pre = di_json_get(root, "pre_tokenizer");
    const di_json *items = sequence(pre, "pretokenizers");
    if (!items || items->length != 4) {
        return di_fail(
            error, DI_ERR_UNSUPPORTED,
            "%s: pre_tokenizer is %s with %zu steps, expected a Sequence of three Splits "
            "and ByteLevel: " ADVICE,
            what, quote__json(pre ? di_json_get(pre, "type") : NULL).text,
            items ? items->length : 0);
    }
    const di_json *step = items->first;
    for (int i = 0; i < 3; i++, step = step->next) DI_TRY(check_split(step, i, what, error));
    if (!is_byte_level(step)) {
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "%s: step 4 of pre_tokenizer is %s, expected \"ByteLevel\": " ADVICE, what,
                       quote__json(di_json_get(step, "type")).text);
    }
    if (has_bool(step, "use_regex", false) && has_bool(step, "add_prefix_space", false))
        return DI_OK;
    return di_fail(
        error, DI_ERR_UNSUPPORTED,
        "%s: ByteLevel in pre_tokenizer must have use_regex and add_prefix_space false: " ADVICE,
        what);
}

/* ByteLevel as a post-processor moves offsets only; others would add tokens. */
static di_status check_ends(const di_json *root, const char *what, di_error *error) {
    const di_json *post = di_json_get(root, "post_processor");
    if (!is_off(post) && !is_byte_level(post)) {
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "%s: post_processor is %s, expected \"ByteLevel\" or null: " ADVICE, what,
                       quote__json(di_json_get(post, "type")).text);
    }
    const di_json *decoder = di_json_get(root, "decoder");
    if (is_byte_level(decoder)) return DI_OK;
    return di_fail(error, DI_ERR_UNSUPPORTED, "%s: decoder is %s, expected \"ByteLevel\": " ADVICE,
                   what, quote__json(decoder ? di_json_get(decoder, "type") : NULL).text);
}

di_status form__check(const di_json *root, const char *what, di_error *error) {
    static const char *const known[] = {"version",        "added_tokens",
                                        "normalizer",     "pre_tokenizer",
                                        "post_processor", "decoder",
                                        "model",          NULL};
    DI_TRY(check_model(di_json_get(root, "model"), what, error));
    DI_TRY(check_others(root, known, "", what, error));
    DI_TRY(check_normalizer(root, what, error));
    DI_TRY(check_pre_tokenizer(root, what, error));
    return check_ends(root, what, error);
}
