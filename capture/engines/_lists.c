/* The lists of numbers in a whole reply, compiled: ids and logprobs, read from their text.

Rules
1. `ids` says what `capture.engines.id_text` says in numpy, of any text. `is_list` too.
2. `logprobs` takes a part of what `capture.engines.sampled` reads, never more, and says the same of it. Anything else is
   None, for the ordinary reader. Numbers are rounded as reading them to a double and that to a float does it.

Why: a prompt has 100,000 ids, and each is read in 2 ns where numpy takes 11; a short list costs numpy's calls some
5 us, whatever there is in it; and 200 logprobs are 200 objects of Python's before they are an array. */

#include "../_json.h"
#include <float.h>

/* Return where a number from 0 to 2^31 - 1 ends, without leading zeros; NULL where there is none.

Eight bytes at a time: what is no digit has its highest bit set, and the lowest such byte ends the number. Its digits are
moved to the highest bytes, zeros below, and three steps add digits to pairs, pairs to fours, fours to one. */
static inline const char *
id_end(const char *at, const char *end, int32_t *value)
{
#if BY_WORDS
    if (end - at >= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        word ^= 0x3030303030303030ULL;
        /* A carry out of a byte that is no digit only reaches those behind it. */
        uint64_t others = ((word + 0x7676767676767676ULL) | word) & 0x8080808080808080ULL;
        if (others) {
            int n = __builtin_ctzll(others) >> 3;
            if (n == 0 || (n > 1 && (word & 0xFF) == 0))
                return NULL;
            word <<= 8 * (8 - n);
            word = (word * 10 + (word >> 8)) & 0x00FF00FF00FF00FFULL;
            word = (word * 100 + (word >> 16)) & 0x0000FFFF0000FFFFULL;
            *value = (int32_t)(uint32_t)(word * 10000 + (word >> 32));
            return at + n;
        }
    }
#endif
    const char *stop = digits(at, end, 10);
    if (stop == at || (*at == '0' && stop - at > 1) || (stop < end && *stop >= '0' && *stop <= '9'))
        return NULL;
    int64_t found = 0;
    for (; at < stop; at++)
        found = found * 10 + (*at - '0');
    if (found > INT32_MAX)
        return NULL;
    *value = (int32_t)found;
    return stop;
}

PyDoc_STRVAR(ids_doc, "ids(text, /)\n--\n\nReturn the ids of a list's text without its brackets, as int32 in a "
                      "bytearray; None for anything but numbers and commas.");

static PyObject *
ids(PyObject *Py_UNUSED(module), PyObject *text)
{
    if (!PyBytes_Check(text))
        return PyErr_Format(PyExc_TypeError, "the text must be bytes");
    const char *at = PyBytes_AS_STRING(text), *end = at + PyBytes_GET_SIZE(text);
    Py_ssize_t n = 1;
    for (const char *c = at; c < end; c++)
        n += *c == ',';
    PyObject *found = PyByteArray_FromStringAndSize(NULL, n * (Py_ssize_t)sizeof(int32_t));
    if (found == NULL)
        return NULL;
    int32_t *to = (int32_t *)(void *)PyByteArray_AS_STRING(found), *last = to + n - 1;
    for (;; at++, to++) {
        if ((at = id_end(at, end, to)) == NULL)
            break;
        if (at == end && to == last)
            return found;
        /* Each comma was counted, so there is room for as many. */
        if (at == end || *at != ',')
            break;
    }
    Py_DECREF(found);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(is_list_doc, "is_list(text, /)\n--\n\nSay whether a text is numbers with a comma between, of any size.");

static PyObject *
is_list(PyObject *Py_UNUSED(module), PyObject *text)
{
    if (!PyBytes_Check(text))
        return PyErr_Format(PyExc_TypeError, "the text must be bytes");
    const char *at = PyBytes_AS_STRING(text), *end = at + PyBytes_GET_SIZE(text);
    int32_t ignored;
    for (;; at++) {
        const char *stop = id_end(at, end, &ignored);
        if (stop == NULL) {
            /* It may be larger. */
            stop = digits(at, end, INT_MAX);
            if (stop == at || (*at == '0' && stop - at > 1))
                Py_RETURN_FALSE;
        }
        at = stop;
        if (at == end)
            Py_RETURN_TRUE;
        if (*at != ',')
            Py_RETURN_FALSE;
    }
}

/* Return a number as a float, by way of the double next to it; -1 where it is beyond all floats. */
static int
read_float(const char *at, const char *stop, float *value)
{
    double found;
#if LDBL_MANT_DIG == 64
    static const long double TENS[] = {1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,  1e7L,  1e8L,  1e9L,
                                       1e10L, 1e11L, 1e12L, 1e13L, 1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L,
                                       1e20L, 1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L};
    /* All of its digits in 64 bits, over a power of ten that 64 bits hold too: one division, rounded once. */
    uint64_t all = 0;
    int n = 0, behind = 0, is_negative = *at == '-';
    const char *c = at + is_negative;
    for (; c < stop && *c >= '0' && *c <= '9'; c++, n++)
        all = all * 10 + (uint64_t)(*c - '0');
    if (c < stop && *c == '.')
        for (c++; c < stop && *c >= '0' && *c <= '9'; c++, n++, behind++)
            all = all * 10 + (uint64_t)(*c - '0');
    if (c == stop && n <= 19) {
        long double exact = (long double)all / TENS[behind];
        uint64_t bits;
        memcpy(&bits, &exact, 8);
        /* Of its 64 bits a double has 53. Where the rest is a half to the bit, it may have been rounded to that. */
        if ((bits & 0x7FF) != 0x400) {
            found = (double)exact;
            *value = (float)(is_negative ? -found : found);
            return 0;
        }
    }
#endif
    /* Behind it stands what ends a number. */
    found = PyOS_string_to_double(at, (char **)&stop, NULL);
    if (found == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return -1;
    }
    if (found > FLT_MAX || found < -FLT_MAX)
        return -1;
    *value = (float)found;
    return 0;
}

/* Read one entry; 0 where it is not just so, or else where it ends. */
static const char *
read_entry(const char *at, const char *end, float *value)
{
    int ignored;
    EAT("{\"token\":\"");
    if ((at = text_end(at, end, 0, &ignored)) == NULL)
        return NULL;
    EAT("\",\"logprob\":");
    const char *stop = number(at, end);
    if (stop == NULL || stop == end || *stop != ',' || read_float(at, stop, value) < 0)
        return NULL;
    at = stop;
    EAT(",\"bytes\":");
    if ((at = bytes_end(at, end)) == NULL)
        return NULL;
    EAT(",\"top_logprobs\":[]}");
    return at;
}

PyDoc_STRVAR(logprobs_doc,
             "logprobs(data, start, end, n, /)\n--\n\nReturn the logprobs of the entries that stand in `data` from "
             "`start` to `end`, one behind the other, as float32 in a bytearray; None unless there are `n` of them, of "
             "the form that vLLM gives where no alternatives were asked for.");

static PyObject *
logprobs(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *data;
    Py_ssize_t start, stop, n;
    if (!PyArg_ParseTuple(args, "Snnn", &data, &start, &stop, &n))
        return NULL;
    if (start < 0 || stop < start || stop > PyBytes_GET_SIZE(data) || n < 0)
        return PyErr_Format(PyExc_ValueError, "the entries must stand in the data");
    /* The shortest is longer. */
    if (n == 0 || n > (stop - start) / 8)
        Py_RETURN_NONE;
    const char *at = PyBytes_AS_STRING(data) + start, *end = PyBytes_AS_STRING(data) + stop;
    PyObject *found = PyByteArray_FromStringAndSize(NULL, n * (Py_ssize_t)sizeof(float));
    if (found == NULL)
        return NULL;
    float *to = (float *)(void *)PyByteArray_AS_STRING(found);
    while ((at = read_entry(at, end, to)) != NULL && --n > 0 && at < end && *at == ',')
        at++, to++;
    if (at == end && n == 0)
        return found;
    Py_DECREF(found);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"ids", ids, METH_O, ids_doc},
    {"is_list", is_list, METH_O, is_list_doc},
    {"logprobs", logprobs, METH_VARARGS, logprobs_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "capture.engines._lists",
    .m_doc = "The lists of numbers in a whole reply, compiled.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__lists(void)
{
    know_plain();
    return PyModule_Create(&module);
}
