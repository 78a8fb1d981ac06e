/* Small tokenizer.json files for tests: the 256 byte tokens (id = byte), then what the test adds.
 */
#ifndef DI_TESTS_SUPPORT_TOKENIZER_TEXT_H
#define DI_TESTS_SUPPORT_TOKENIZER_TEXT_H

/* The text of a file; free() it. Each list ends with NULL and may be NULL itself.
 * words: further tokens as the vocabulary spells them, with ids from 256 on.
 * merges: "left right", spelled the same way, first rank 0.
 * added: items of added_tokens without the braces, as "\"id\": 300, \"content\": \"<a>\"". */
char *tokenizer_text(const char *const *words, const char *const *merges, const char *const *added);

/* Writes a byte in the byte-level alphabet, NUL-terminated. */
void tokenizer_text_spell(unsigned char byte, char spelling[4]);

#endif
