/* An expression as a tree: what regex_parse.c makes and regex.c reads. */
#ifndef DI_GRAMMAR_REGEX_TREE_H
#define DI_GRAMMAR_REGEX_TREE_H

#include "grammar/chars.h"

typedef enum tree_kind {
    TREE_EMPTY,
    TREE_SET,
    TREE_BEGIN,    /* ^ */
    TREE_END,      /* $ */
    TREE_SEQUENCE, /* children from the last to the first */
    TREE_CHOICE,
    TREE_REPEAT /* of its one child; max -1: any number */
} tree_kind;

typedef struct regex_tree {
    tree_kind kind;
    char_set set;
    struct regex_tree *first, *sibling;
    int32_t min, max;
} regex_tree;

const regex_tree *regex__tree(compiler *c, const char *text, size_t size, const char *what);

#endif
