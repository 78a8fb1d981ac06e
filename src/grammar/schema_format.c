/* Formats as expressions, and patterns by their text.
 *
 * An expression may allow less than its RFC (no leap seconds, no comments in addresses, ASCII where other
 * scripts are possible), never more: an answer that says it is a date is one.
 */
#include <string.h>

#include "grammar/schema_internal.h"

/* Days by month, and 29 February in leap years: those divisible by 4 but not by 100, or by 400. */
#define LEAP "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[048]|[2468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"      \
    "02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define CLOCK "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
#define ZONE "(Z|z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 BYTE "(\\." BYTE "){3}"
#define H "[0-9a-fA-F]{1,4}"
#define IPV6                                                                                       \
    "((" H ":){7}" H "|(" H ":){1,7}:|(" H ":){1,6}:" H "|(" H ":){1,5}(:" H "){1,2}|"             \
    "(" H ":){1,4}(:" H "){1,3}|(" H ":){1,3}(:" H "){1,4}|(" H ":){1,2}(:" H "){1,5}|" H ":(:" H  \
    "){1,6}|:((:" H "){1,7}|:))"
#define LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define ATEXT "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
#define EMAIL ATEXT "(\\." ATEXT ")*@(" LABEL "\\.)+" LABEL
#define HOSTNAME LABEL "(\\." LABEL "){0,2}"
/* No "--" in third place: what that begins is a name in other characters, or no name. */
#define PLAIN_LABEL                                                                                \
    "[a-zA-Z0-9](([a-zA-Z0-9-]([a-zA-Z0-9-]|([a-zA-Z0-9][a-zA-Z0-9-]|-[a-zA-Z0-9])"                \
    "[a-zA-Z0-9-]{0,58})?)?[a-zA-Z0-9])?"
#define IDN_HOSTNAME PLAIN_LABEL "(\\." PLAIN_LABEL "){0,2}"
#define HEX2 "%[0-9a-fA-F]{2}"
#define PCHAR "([a-zA-Z0-9._~!$&'()*+,;=:@-]|" HEX2 ")"
#define QUERY "(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?"
#define AUTHORITY "//((" LABEL "\\.)*" LABEL "|" IPV4 ")(:[0-9]{1,5})?"
#define URI "[a-zA-Z][a-zA-Z0-9+.-]*:(" AUTHORITY "(/" PCHAR "*)*|/?" PCHAR "+(/" PCHAR "*)*)" QUERY
/* A relative reference's first segment has no colon. */
#define RELATIVE                                                                                   \
    "((" AUTHORITY ")?(/" PCHAR "+)*/?|([a-zA-Z0-9._~!$&'()*+,;=@-]|" HEX2 ")+(/" PCHAR "*)*)" QUERY
#define BASE64 "([a-zA-Z0-9+/]{4})*([a-zA-Z0-9+/]{2}==|[a-zA-Z0-9+/]{3}=)?"
#define DURATION_TIME "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"
#define DURATION_DATE "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)"

static const struct {
    const char *name, *expression;
} formats[] = {
    {"date", DATE},
    {"time", CLOCK ZONE},
    {"date-time", DATE "[Tt]" CLOCK ZONE},
    {"duration", "P(" DURATION_DATE "(" DURATION_TIME ")?|" DURATION_TIME "|[0-9]+W)"},
    {"email", EMAIL},
    {"hostname", HOSTNAME},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uri", URI},
    {"uri-reference", URI "|" RELATIVE},
    {"iri", URI},
    {"iri-reference", URI "|" RELATIVE},
    {"idn-email", EMAIL},
    {"idn-hostname", IDN_HOSTNAME},
    {"byte", BASE64}, /* OpenAPI's, as are those of numbers */
    {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
    {"json-pointer", "(/([^/~]|~[01])*)*"},
};

enum { N_FORMATS = sizeof formats / sizeof *formats };

pattern *schema__pattern(schema *s, const char *text, size_t size, bool search, const char *what) {
    pattern *p = compiler__alloc(s->c, 1, sizeof *p);
    if (!p) return NULL;
    p->regex = regex__parse(s->c, text, size, search, what);
    return p->regex ? p : NULL;
}

bool schema__number_format(schema *s, const di_json *name, number_alt *a) {
    static const struct {
        const char *name, *lo, *hi;
    } numbers[] = {{"int32", "-2147483648", "2147483647"},
                   {"int64", "-9223372036854775808", "9223372036854775807"},
                   {"double", NULL, NULL}}; /* every number that is written is one */
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (!di_json_is_string(name, numbers[i].name)) continue;
        if (!a || !numbers[i].lo) return true;
        a->integer = true; /* also where "type" says number, or nothing */
        di_json bound = {.type = DI_JSON_NUMBER, .text = numbers[i].lo};
        const decimal *lo = schema__decimal(s, &bound, "format");
        bound.text = numbers[i].hi;
        const decimal *hi = schema__decimal(s, &bound, "format");
        if (!lo || !hi) return true;
        if (!a->lo || schema__compare(a->lo, lo) < 0) a->lo = lo, a->lo_open = false;
        if (!a->hi || schema__compare(a->hi, hi) > 0) a->hi = hi, a->hi_open = false;
        return true;
    }
    return false;
}

/* NULL without a failure: the format says nothing about strings. */
pattern *schema__format(schema *s, const di_json *at, const di_json *name) {
    if (schema__number_format(s, name, NULL) || di_json_is_string(name, "password")) return NULL;
    if (!s->formats) s->formats = compiler__alloc(s->c, N_FORMATS, sizeof *s->formats);
    for (size_t i = 0; i < N_FORMATS && s->formats; i++) {
        if (!di_json_is_string(name, formats[i].name)) continue;
        if (!s->formats[i]) {
            const char *text = formats[i].expression;
            s->formats[i] = schema__pattern(s, text, strlen(text), false, formats[i].name);
        }
        return s->formats[i];
    }
    schema__fail(s, DI_ERR_UNSUPPORTED, at, "format",
                 "this format is not supported; those that are: date, time, date-time, duration, "
                 "email, hostname, ipv4, ipv6, uri, uri-reference, uuid, json-pointer, byte, "
                 "int32, int64, double");
    return NULL;
}
