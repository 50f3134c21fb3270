/* The lane of a stream's ordinary tokens, compiled: what `capture.engines.stamp` does in Python, with the same outcome.

Rules
1. It takes a part of what the expression `stamp._token` takes, never more, and makes the same of it. Whatever it does
   not take is None, and nothing has changed. The tests hold the two against each other.
2. It keeps what it is given (ids and logprobs as their own bytes, texts as str) where the Python lane keeps it, so that
   both may serve one stream in turn.

Why: a streamed token costs a proxy that looks at nothing some 14 us, of which ten are the kernel's. The lane in Python
takes 1.5 us, and what surrounds it, from chunk to chunk, as much again where the caches are warm; between two tokens the
kernel cools them, and each function of Python's that a token passes costs more than its bytecode. Here a token passes
one. This and `_lists` are the whole of what is compiled, and both may be absent: then the same in Python serves. */

#include "../_json.h"
#include <structmember.h>

enum { CONTENT, REASONING, REASONING_CONTENT, FIELDS };
static const char *const NAMES[FIELDS] = {"content", "reasoning", "reasoning_content"};

typedef struct {
    PyObject_HEAD
    /* What an event begins with, up to the delta; what the client gets before the delta and behind it. */
    PyObject *lead, *before, *behind;
    /* Says where the pieces of a text are kept, by its field; and where, once it was asked. */
    PyObject *keep;
    PyObject *pieces[FIELDS];
    PyObject *ids, *logprobs;
    /* Says what the client gets of a text, or None: the delta as it came. */
    PyObject *tell;
} Lane;

/* What stands in one event. All point into its bytes. */
typedef struct {
    const char *delta, *text, *logprob, *id;
    Py_ssize_t n_delta, n_text, n_logprob, n_id;
    int field, escaped;
} Token;

/* Read one event, from behind its lead; 0 where it is not just so. */
static int
read_token(const char *at, const char *end, Token *token)
{
    int ignored = 0;
    const char *stop;
    token->delta = at;
    token->escaped = 0;
    EAT("{\"");
    if (end - at > 9 && memcmp(at, "content\":\"", 10) == 0) {
        token->field = CONTENT;
        at += 10;
    }
    else if (end - at > 11 && memcmp(at, "reasoning\":\"", 12) == 0) {
        token->field = REASONING;
        at += 12;
    }
    else if (end - at > 19 && memcmp(at, "reasoning_content\":\"", 20) == 0) {
        token->field = REASONING_CONTENT;
        at += 20;
    }
    else {
        return 0;
    }
    token->text = at;
    if ((at = text_end(at, end, 0, &token->escaped)) == NULL)
        return 0;
    token->n_text = at - token->text;
    EAT("\"}");
    token->n_delta = at - token->delta;
    EAT(",\"logprobs\":{\"content\":[{\"token\":\"");
    if (end - at > token->n_text && memcmp(at, token->text, token->n_text) == 0 && at[token->n_text] == '"')
        at += token->n_text;
    else if ((at = text_end(at, end, 1, &ignored)) == NULL)
        return 0;
    EAT("\",\"logprob\":");
    token->logprob = at;
    if ((at = number(at, end)) == NULL)
        return 0;
    token->n_logprob = at - token->logprob;
    EAT(",\"bytes\":");
    if ((at = bytes_end(at, end)) == NULL)
        return 0;
    EAT(",\"top_logprobs\":[]}]},\"finish_reason\":null,\"token_ids\":[");
    token->id = at;
    if ((stop = whole(at, end, 9)) == NULL)
        return 0;
    token->n_id = stop - at;
    at = stop;
    EAT("]}]}\n\n");
    return at == end;
}

/* Return what a text reads; NULL, and no error, where it is no UTF-8. */
static PyObject *
read_text(const Token *token)
{
    PyObject *said;
    if (!token->escaped) {
        said = PyUnicode_DecodeUTF8(token->text, token->n_text, "strict");
    }
    else {
        char *plain = PyMem_Malloc((size_t)token->n_text);
        if (plain == NULL)
            return PyErr_NoMemory();
        Py_ssize_t n = 0;
        for (Py_ssize_t i = 0; i < token->n_text; i++) {
            char c = token->text[i];
            if (c == '\\') {
                c = token->text[++i];
                c = c == 'b' ? '\b' : c == 'f' ? '\f' : c == 'n' ? '\n' : c == 'r' ? '\r' : c == 't' ? '\t' : c;
            }
            plain[n++] = c;
        }
        said = PyUnicode_DecodeUTF8(plain, n, "strict");
        PyMem_Free(plain);
    }
    if (said == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
        PyErr_Clear();
    return said;
}

static int
append(PyObject *list, PyObject *item)
{
    if (item == NULL)
        return -1;
    int failed = PyList_Append(list, item);
    Py_DECREF(item);
    return failed;
}

/* Return the list that keeps the pieces of a field's text, borrowed. */
static PyObject *
pieces_of(Lane *self, int field)
{
    if (self->pieces[field] == NULL) {
        PyObject *found = PyObject_CallFunction(self->keep, "s", NAMES[field]);
        if (found != NULL && !PyList_Check(found)) {
            Py_DECREF(found);
            PyErr_SetString(PyExc_TypeError, "keep must return a list");
            return NULL;
        }
        self->pieces[field] = found;
    }
    return self->pieces[field];
}

/* Return what the client gets of a text whose words another says, None where that can't say it. */
static PyObject *
ask(Lane *self, const Token *token, PyObject *said)
{
    PyObject *told = PyObject_CallFunction(
        self->tell, "yy#O", NAMES[token->field], token->text, token->n_text, said);
    if (told != NULL && told != Py_None && !PyBytes_Check(told)) {
        Py_DECREF(told);
        PyErr_SetString(PyExc_TypeError, "tell must return bytes or None");
        return NULL;
    }
    return told;
}

/* Write `before`, the delta and `behind`. */
static char *
put_shown(const Lane *self, const Token *token, char *to)
{
    memcpy(to, PyBytes_AS_STRING(self->before), (size_t)PyBytes_GET_SIZE(self->before));
    to += PyBytes_GET_SIZE(self->before);
    memcpy(to, token->delta, (size_t)token->n_delta);
    to += token->n_delta;
    memcpy(to, PyBytes_AS_STRING(self->behind), (size_t)PyBytes_GET_SIZE(self->behind));
    return to + PyBytes_GET_SIZE(self->behind);
}

/* Return the bytes that the client gets of an event, or None; what it brings is kept then, and only then. */
static PyObject *
take(Lane *self, const char *at, const char *end)
{
    Token token;
    Py_ssize_t n_lead = PyBytes_GET_SIZE(self->lead);
    if (end - at < n_lead || memcmp(at, PyBytes_AS_STRING(self->lead), (size_t)n_lead) != 0 ||
        !read_token(at + n_lead, end, &token))
        Py_RETURN_NONE;
    PyObject *said = read_text(&token);
    if (said == NULL) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    PyObject *shown;
    if (self->tell != Py_None) {
        shown = ask(self, &token, said);
    }
    else {
        Py_ssize_t n = PyBytes_GET_SIZE(self->before) + token.n_delta + PyBytes_GET_SIZE(self->behind);
        if ((shown = PyBytes_FromStringAndSize(NULL, n)) != NULL)
            put_shown(self, &token, PyBytes_AS_STRING(shown));
    }
    if (shown == NULL || shown == Py_None) {
        Py_DECREF(said);
        return shown;
    }
    PyObject *pieces = pieces_of(self, token.field);
    if (pieces == NULL) {
        Py_DECREF(said);
        Py_DECREF(shown);
        return NULL;
    }
    if (append(pieces, said) < 0 || append(self->ids, PyBytes_FromStringAndSize(token.id, token.n_id)) < 0 ||
        append(self->logprobs, PyBytes_FromStringAndSize(token.logprob, token.n_logprob)) < 0) {
        Py_DECREF(shown);
        return NULL;
    }
    return shown;
}

PyDoc_STRVAR(event_doc, "event(data, /)\n--\n\nRecord an event and return what the client gets of it; None, and nothing "
                        "is changed, if it is not for this way.");

static PyObject *
lane_event(Lane *self, PyObject *data)
{
    if (!PyBytes_Check(data)) {
        PyErr_SetString(PyExc_TypeError, "an event is bytes");
        return NULL;
    }
    return take(self, PyBytes_AS_STRING(data), PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data));
}

/* Write a size as the line that begins a chunk; return its length. */
static int
size_line(char *to, size_t size)
{
    char turned[2 * sizeof(size_t)];
    int n = 0;
    do {
        turned[n++] = "0123456789abcdef"[size & 15];
        size >>= 4;
    } while (size);
    for (int i = 0; i < n; i++)
        to[i] = turned[n - 1 - i];
    to[n] = '\r';
    to[n + 1] = '\n';
    return n + 2;
}

/* Take an event in one whole chunk: 1, and what the client gets and the chunk that brings it; 0 if it is not for this
   way, and nothing has changed; -1 with an error. */
static int
take_chunk(Lane *self, PyObject *data, PyObject **shown, PyObject **framed)
{
    char line[2 * sizeof(size_t) + 2];
    if (!PyBytes_Check(data)) {
        PyErr_SetString(PyExc_TypeError, "a chunk is bytes");
        return -1;
    }
    const char *at = PyBytes_AS_STRING(data);
    Py_ssize_t n = PyBytes_GET_SIZE(data);
    const char *found = memchr(at, '\r', (size_t)(n < 10 ? n : 10));
    if (found == NULL || at + n - found < 5 || memcmp(at + n - 2, "\r\n", 2) != 0)
        return 0;
    /* The line is the one that a server writes before so many bytes, or the event is cut, or more than one. */
    int n_line = size_line(line, (size_t)(at + n - found - 4));
    if (n_line != found - at + 2 || memcmp(at, line, (size_t)n_line) != 0)
        return 0;
    *shown = take(self, at + n_line, at + n - 2);
    if (*shown == NULL)
        return -1;
    if (*shown == Py_None) {
        Py_CLEAR(*shown);
        return 0;
    }
    Py_ssize_t size = PyBytes_GET_SIZE(*shown);
    n_line = size_line(line, (size_t)size);
    /* Nothing for nothing: an empty chunk would be the last. */
    *framed = PyBytes_FromStringAndSize(NULL, size == 0 ? 0 : n_line + size + 2);
    if (*framed == NULL) {
        Py_CLEAR(*shown);
        return -1;
    }
    if (size != 0) {
        char *to = PyBytes_AS_STRING(*framed);
        memcpy(to, line, (size_t)n_line);
        memcpy(to + n_line, PyBytes_AS_STRING(*shown), (size_t)size);
        memcpy(to + n_line + size, "\r\n", 2);
    }
    return 1;
}

PyDoc_STRVAR(chunk_doc, "chunk(data, /)\n--\n\nDo the same with an event in one whole chunk of the transfer coding; "
                        "return what the client gets, and the chunk that brings it.");

static PyObject *
lane_chunk(Lane *self, PyObject *data)
{
    PyObject *shown = NULL, *framed = NULL;
    int took = take_chunk(self, data, &shown, &framed);
    if (took < 0)
        return NULL;
    if (took == 0)
        Py_RETURN_NONE;
    PyObject *both = PyTuple_Pack(2, shown, framed);
    Py_DECREF(shown);
    Py_DECREF(framed);
    return both;
}

static int
lane_traverse(Lane *self, visitproc visit, void *arg)
{
    Py_VISIT(self->keep);
    Py_VISIT(self->ids);
    Py_VISIT(self->logprobs);
    Py_VISIT(self->tell);
    for (int i = 0; i < FIELDS; i++)
        Py_VISIT(self->pieces[i]);
    return 0;
}

static int
lane_clear(Lane *self)
{
    Py_CLEAR(self->lead);
    Py_CLEAR(self->before);
    Py_CLEAR(self->behind);
    Py_CLEAR(self->keep);
    Py_CLEAR(self->ids);
    Py_CLEAR(self->logprobs);
    Py_CLEAR(self->tell);
    for (int i = 0; i < FIELDS; i++)
        Py_CLEAR(self->pieces[i]);
    return 0;
}

static void
lane_dealloc(Lane *self)
{
    PyObject_GC_UnTrack(self);
    lane_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* All is given when it is made, and nothing of it changes: there is no lane without its parts. */
static PyObject *
lane_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"lead", "before", "behind", "keep", "ids", "logprobs", "tell", NULL};
    PyObject *lead, *before, *behind, *keep, *ids, *logprobs, *tell;
    if (!PyArg_ParseTupleAndKeywords(
            args, named, "SSSOO!O!O", names, &lead, &before, &behind, &keep, &PyList_Type, &ids, &PyList_Type,
            &logprobs, &tell))
        return NULL;
    Lane *self = (Lane *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->lead = Py_NewRef(lead);
    self->before = Py_NewRef(before);
    self->behind = Py_NewRef(behind);
    self->keep = Py_NewRef(keep);
    self->ids = Py_NewRef(ids);
    self->logprobs = Py_NewRef(logprobs);
    self->tell = Py_NewRef(tell);
    return (PyObject *)self;
}

static PyMethodDef lane_methods[] = {
    {"event", (PyCFunction)lane_event, METH_O, event_doc},
    {"chunk", (PyCFunction)lane_chunk, METH_O, chunk_doc},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject LaneType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "capture.engines._lane.Lane",
    .tp_doc = PyDoc_STR("The way of a stream's ordinary tokens, while its events begin with `lead`."),
    .tp_basicsize = sizeof(Lane),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = lane_new,
    .tp_dealloc = (destructor)lane_dealloc,
    .tp_traverse = (traverseproc)lane_traverse,
    .tp_clear = (inquiry)lane_clear,
    .tp_methods = lane_methods,
};

/* One stream's ordinary tokens on their way, as `capture.rush.PlainRush` has it: that says what each part is for. */
typedef struct {
    PyObject_HEAD
    PyObject *send, *is_closing, *protocol, *said, *pieces, *monotonic, *attend, *failed;
    PyObject *lane;
    double since, due;
    Py_ssize_t uncounted;
} Rush;

static PyObject *str_paused, *str_followers, *str_dropped, *str_add, *str_count, *str_chunk;

/* Say whether an attribute is true; -1 with an error. */
static int
is_true(PyObject *of, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(of, name);
    if (value == NULL)
        return -1;
    int truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

/* Tell of a fault of the lane's, and forget it; -1 if it is none that the relay outlives. */
static int
tell_fault(Rush *self)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *error = PyErr_GetRaisedException();
#else
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL)
        PyException_SetTraceback(error, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
#endif
    PyObject *told = PyObject_CallOneArg(self->failed, error);
    Py_XDECREF(error);
    Py_XDECREF(told);
    return told == NULL ? -1 : 0;
}

/* As `take_chunk`, by a lane of any sort. */
static int
take_any(PyObject *lane, PyObject *data, PyObject **shown, PyObject **framed)
{
    if (Py_IS_TYPE(lane, &LaneType))
        return take_chunk((Lane *)lane, data, shown, framed);
    PyObject *both = PyObject_CallMethodOneArg(lane, str_chunk, data);
    if (both == NULL)
        return -1;
    if (both == Py_None) {
        Py_DECREF(both);
        return 0;
    }
    if (!PyTuple_Check(both) || PyTuple_GET_SIZE(both) != 2 || !PyBytes_Check(PyTuple_GET_ITEM(both, 0))) {
        Py_DECREF(both);
        PyErr_SetString(PyExc_TypeError, "a lane's chunk returns two times bytes, or None");
        return -1;
    }
    *shown = Py_NewRef(PyTuple_GET_ITEM(both, 0));
    *framed = Py_NewRef(PyTuple_GET_ITEM(both, 1));
    Py_DECREF(both);
    return 1;
}

/* Keep a piece and send its chunk. */
static int
pass_on(Rush *self, PyObject *shown, PyObject *framed)
{
    int followed = is_true(self->said, str_followers), dropped = followed < 0 ? -1 : is_true(self->said, str_dropped);
    if (followed < 0 || dropped < 0)
        return -1;
    if (followed || dropped) {
        PyObject *added = PyObject_CallMethodOneArg(self->said, str_add, shown);
        if (added == NULL)
            return -1;
        Py_DECREF(added);
    }
    else {
        if (PyList_Append(self->pieces, shown) < 0)
            return -1;
        self->uncounted += PyBytes_GET_SIZE(shown);
    }
    PyObject *sent = PyObject_CallOneArg(self->send, framed);
    Py_XDECREF(sent);
    return sent == NULL ? -1 : 0;
}

/* Have the transcript count what it was given without a word. */
static int
count(Rush *self)
{
    PyObject *size = PyLong_FromSsize_t(self->uncounted);
    if (size == NULL)
        return -1;
    self->uncounted = 0;
    PyObject *done = PyObject_CallMethodOneArg(self->said, str_count, size);
    Py_DECREF(size);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Note the time, and have done what is due. */
static int
tick(Rush *self)
{
    PyObject *now = PyObject_CallNoArgs(self->monotonic);
    if (now == NULL)
        return -1;
    self->since = PyFloat_AsDouble(now);
    if (self->since > self->due && count(self) == 0) {
        PyObject *next = PyObject_CallOneArg(self->attend, now);
        if (next != NULL)
            self->due = PyFloat_AsDouble(next);
        Py_XDECREF(next);
    }
    Py_DECREF(now);
    return PyErr_Occurred() ? -1 : 0;
}

PyDoc_STRVAR(rush_doc, "take(chunk, /)\n--\n\nRecord a chunk and pass it on; False, and nothing has changed, if it is "
                       "not for this way.");

static PyObject *
rush_take(Rush *self, PyObject *chunk)
{
    if (self->lane == NULL || self->lane == Py_None)
        Py_RETURN_FALSE;
    int paused = is_true(self->protocol, str_paused);
    if (paused < 0)
        return NULL;
    PyObject *closing = PyObject_CallNoArgs(self->is_closing);
    if (closing == NULL)
        return NULL;
    int closed = PyObject_IsTrue(closing);
    Py_DECREF(closing);
    if (closed < 0)
        return NULL;
    if (paused || closed)
        Py_RETURN_FALSE;
    PyObject *shown = NULL, *framed = NULL, *lane = Py_NewRef(self->lane);
    int took = take_any(lane, chunk, &shown, &framed);
    Py_DECREF(lane);
    if (took < 0) {
        if (tell_fault(self) < 0)
            return NULL;
        Py_RETURN_FALSE;
    }
    if (took == 0)
        Py_RETURN_FALSE;
    int failed = tick(self) < 0 || (PyBytes_GET_SIZE(shown) != 0 && pass_on(self, shown, framed) < 0);
    Py_DECREF(shown);
    Py_DECREF(framed);
    if (failed)
        return NULL;
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(settle_doc, "settle()\n--\n\nHave the transcript count what was kept since it did last.");

static PyObject *
rush_settle(Rush *self, PyObject *Py_UNUSED(ignored))
{
    if (count(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int
rush_traverse(Rush *self, visitproc visit, void *arg)
{
    Py_VISIT(self->send);
    Py_VISIT(self->is_closing);
    Py_VISIT(self->protocol);
    Py_VISIT(self->said);
    Py_VISIT(self->pieces);
    Py_VISIT(self->monotonic);
    Py_VISIT(self->attend);
    Py_VISIT(self->failed);
    Py_VISIT(self->lane);
    return 0;
}

static int
rush_clear(Rush *self)
{
    Py_CLEAR(self->send);
    Py_CLEAR(self->is_closing);
    Py_CLEAR(self->protocol);
    Py_CLEAR(self->said);
    Py_CLEAR(self->pieces);
    Py_CLEAR(self->monotonic);
    Py_CLEAR(self->attend);
    Py_CLEAR(self->failed);
    Py_CLEAR(self->lane);
    return 0;
}

static void
rush_dealloc(Rush *self)
{
    PyObject_GC_UnTrack(self);
    rush_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
rush_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"send", "is_closing", "protocol", "said", "pieces", "monotonic", "attend", "failed", NULL};
    PyObject *send, *is_closing, *protocol, *said, *pieces, *monotonic, *attend, *failed;
    if (!PyArg_ParseTupleAndKeywords(
            args, named, "OOOOO!OOO", names, &send, &is_closing, &protocol, &said, &PyList_Type, &pieces, &monotonic,
            &attend, &failed))
        return NULL;
    Rush *self = (Rush *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->send = Py_NewRef(send);
    self->is_closing = Py_NewRef(is_closing);
    self->protocol = Py_NewRef(protocol);
    self->said = Py_NewRef(said);
    self->pieces = Py_NewRef(pieces);
    self->monotonic = Py_NewRef(monotonic);
    self->attend = Py_NewRef(attend);
    self->failed = Py_NewRef(failed);
    self->lane = Py_NewRef(Py_None);
    return (PyObject *)self;
}

static PyMethodDef rush_methods[] = {
    {"take", (PyCFunction)rush_take, METH_O, rush_doc},
    {"settle", (PyCFunction)rush_settle, METH_NOARGS, settle_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef rush_members[] = {
    {"lane", T_OBJECT_EX, offsetof(Rush, lane), 0, PyDoc_STR("The lane at present, or None.")},
    {"since", T_DOUBLE, offsetof(Rush, since), 0, PyDoc_STR("When something was last taken, on the monotonic clock.")},
    {"due", T_DOUBLE, offsetof(Rush, due), 0, PyDoc_STR("When `attend` is to be called next.")},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject RushType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "capture.engines._lane.Rush",
    .tp_doc = PyDoc_STR("Takes the chunks of one stream's ordinary tokens from socket to socket."),
    .tp_basicsize = sizeof(Rush),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = rush_new,
    .tp_dealloc = (destructor)rush_dealloc,
    .tp_traverse = (traverseproc)rush_traverse,
    .tp_clear = (inquiry)rush_clear,
    .tp_methods = rush_methods,
    .tp_members = rush_members,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "capture.engines._lane",
    .m_doc = "The lane of a stream's ordinary tokens, compiled.",
    .m_size = -1,
};

PyMODINIT_FUNC
PyInit__lane(void)
{
    know_plain();
    str_paused = PyUnicode_InternFromString("_paused");
    str_followers = PyUnicode_InternFromString("followers");
    str_dropped = PyUnicode_InternFromString("dropped");
    str_add = PyUnicode_InternFromString("add");
    str_count = PyUnicode_InternFromString("count");
    str_chunk = PyUnicode_InternFromString("chunk");
    if (!str_paused || !str_followers || !str_dropped || !str_add || !str_count || !str_chunk)
        return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made == NULL || PyModule_AddType(made, &LaneType) < 0 || PyModule_AddType(made, &RushType) < 0) {
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
