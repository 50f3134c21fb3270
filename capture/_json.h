/* What stands in an engine's JSON, told byte by byte: for what is compiled. Each takes a part of what JSON allows, never
   more, and is told apart from the rest by NULL. */

#ifndef TREERING_JSON_H
#define TREERING_JSON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && defined(__GNUC__)
#define BY_WORDS 1
#else
#define BY_WORDS 0
#endif

/* Go on behind a literal, or leave the function with 0. */
#define EAT(literal)                                                                                                   \
    do {                                                                                                               \
        if (end - at < (Py_ssize_t)(sizeof(literal) - 1) || memcmp(at, literal, sizeof(literal) - 1) != 0)             \
            return 0;                                                                                                  \
        at += sizeof(literal) - 1;                                                                                     \
    } while (0)

static unsigned char PLAIN[256]; /* 1: stands for itself in a JSON string; 2: the same, and not ASCII */

/* To be called once, before all else. */
static void
know_plain(void)
{
    for (int c = 0x20; c < 0x100; c++)
        PLAIN[c] = c == '"' || c == '\\' || c == 0x7f ? 0 : c < 0x80 ? 1 : 2;
}

#if BY_WORDS
typedef uint8_t Sixteen __attribute__((vector_size(16)));
typedef uint64_t Halves __attribute__((vector_size(16)));
#endif

/* Return where the first byte stands that doesn't stand for itself in a string, or the last few of the text. */
static inline const char *
skip_plain(const char *at, const char *end, int ascii)
{
#if BY_WORDS
    const uint8_t most = ascii ? 0x7e : 0xff;
    for (; end - at >= 16; at += 16) {
        Sixteen bytes;
        memcpy(&bytes, at, 16);
        Halves found = (Halves)((bytes < 0x20) | (bytes == '"') | (bytes == '\\') | (bytes == 0x7f) | (bytes > most));
        if (found[0])
            return at + (__builtin_ctzll(found[0]) >> 3);
        if (found[1])
            return at + 8 + (__builtin_ctzll(found[1]) >> 3);
    }
#else
    (void)end, (void)ascii;
#endif
    return at;
}

/* Return where a string's text ends, NULL where it is none that every writer spells so. */
static inline const char *
text_end(const char *at, const char *end, int ascii, int *escaped)
{
    while ((at = skip_plain(at, end, ascii)) < end) {
        unsigned char c = (unsigned char)*at;
        if (PLAIN[c] == 1 || (PLAIN[c] == 2 && !ascii)) {
            at++;
        }
        else if (c == '\\' && at + 1 < end && at[1] != '\0' && strchr("bfnrt\"\\", at[1]) != NULL) {
            *escaped = 1;
            at += 2;
        }
        else {
            return c == '"' ? at : NULL;
        }
    }
    return NULL;
}

/* Return where digits end, `most` of them at most. */
static inline const char *
digits(const char *at, const char *end, int most)
{
    while (at < end && most-- > 0 && *at >= '0' && *at <= '9')
        at++;
    return at;
}

/* Return where a whole number without leading zeros ends, NULL where there is none; `most` digits at most. */
static inline const char *
whole(const char *at, const char *end, int most)
{
    if (at < end && *at == '0')
        return at + 1;
    const char *stop = digits(at, end, most);
    return stop == at ? NULL : stop;
}

/* Return where the power of ten of a number ends, NULL where there is none. */
static inline const char *
power(const char *at, const char *end)
{
    if (at >= end || (*at != 'e' && *at != 'E'))
        return NULL;
    at++;
    if (at < end && (*at == '+' || *at == '-'))
        at++;
    const char *stop = digits(at, end, 2);
    return stop == at ? NULL : stop;
}

/* Return where a number with a fraction or a power ends, as Python writes floats, NULL where there is none. */
static inline const char *
number(const char *at, const char *end)
{
    if (at < end && *at == '-')
        at++;
    if ((at = whole(at, end, 16)) == NULL)
        return NULL;
    if (at < end && *at == '.') {
        const char *stop = digits(at + 1, end, 20);
        if (stop == at + 1)
            return NULL;
        const char *behind = power(stop, end);
        return behind != NULL ? behind : stop;
    }
    return power(at, end);
}

/* Return where a list of bytes, as of a token's, or its null ends, NULL where there is neither. */
static inline const char *
bytes_end(const char *at, const char *end)
{
    if (end - at >= 4 && memcmp(at, "null", 4) == 0)
        return at + 4;
    if (at >= end || *at++ != '[')
        return NULL;
    if (at < end && *at == ']')
        return at + 1;
    for (;;) {
        if ((at = whole(at, end, 3)) == NULL || at >= end)
            return NULL;
        if (*at == ']')
            return at + 1;
        if (*at++ != ',')
            return NULL;
    }
}

#endif
