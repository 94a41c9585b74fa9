/* Verbs about output and input. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "probe.h"

/* How much a flood writes at once unless told otherwise. */
#define CHUNK (64 << 10)

static int put(const char *stream, const void *data, size_t length) {
    int fd = strcmp(stream, "stderr") ? 1 : 2;
    const char *at = data;
    while (length > 0) {
        ssize_t written = write(fd, at, length);
        if (written < 0) return MISUSED;
        at += written;
        length -= (size_t)written;
    }
    return 0;
}

static int print_hex(void) {
    const char *digits = text(1);
    size_t length = strlen(digits) / 2;
    unsigned char *data = malloc(length + 1);
    for (size_t at = 0; at < length; at++) {
        char pair[3] = {digits[2 * at], digits[2 * at + 1], 0};
        data[at] = (unsigned char)strtoul(pair, NULL, 16);
    }
    return put(text(0), data, length);
}

/* `flood STREAM BYTES [CHUNK]`: a pattern in which every byte can be checked. */
static int flood(void) {
    uint64_t total = number(1), chunk = number(2) ? number(2) : CHUNK;
    unsigned char *piece = malloc(chunk);
    for (uint64_t at = 0; at < total;) {
        uint64_t size = total - at < chunk ? total - at : chunk;
        for (uint64_t part = 0; part < size; part++) piece[part] = (unsigned char)((at + part) % 251);
        if (put(text(0), piece, size) != 0) return MISUSED;
        at += size;
    }
    return 0;
}

static int flood_fast(void) {
    static char piece[256 << 10];
    memset(piece, 'f', sizeof piece);
    for (uint64_t left = number(1); left > 0;) {
        uint64_t size = left < sizeof piece ? left : sizeof piece;
        if (put(text(0), piece, size) != 0) return MISUSED;
        left -= size;
    }
    return 0;
}

/* `interleave N`: numbered lines, in turn on both streams. */
static int interleave(void) {
    for (uint64_t at = 0; at < number(0); at++) {
        char line[32];
        int length = snprintf(line, sizeof line, "%llu\n", at);
        if (put(at % 2 == 0 ? "stdout" : "stderr", line, (size_t)length) != 0) return MISUSED;
    }
    return 0;
}

/* `echo`: gives its input back until it ends. */
static int echo(void) {
    static char buffer[CHUNK];
    for (ssize_t count; (count = read(0, buffer, sizeof buffer)) != 0;) {
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 || put("stdout", buffer, (size_t)count) != 0) return MISUSED;
    }
    return 0;
}

/* `close-fds-then-sleep MS`: gives its output up, so that nobody notices its end by that. */
static int close_then_rest(void) {
    put("stdout", "ready\n", 6);
    for (int fd = 0; fd < 3; fd++) close(fd);
    rest(number(0));
    return 0;
}

/* `write-after-close`: what a write says once the output was closed, told on standard error. */
static int write_after_close(void) {
    close(1);
    int number = write(1, "too late", 8) < 0 ? errno : 0;
    fprintf(stderr, "{\"ok\":%s,\"errno\":%d}\n", number ? "false" : "true", number);
    return 0;
}

static int terminal(void) {
    const char *are[2] = {"false", "true"};
    printf("{\"ok\":true,\"terminals\":[%s,%s,%s],\"rows\":null,\"cols\":null}\n", are[isatty(0)],
           are[isatty(1)], are[isatty(2)]);
    return 0;
}

int run_output(const char *verb) {
    if (!strcmp(verb, "print")) return put(text(0), text(1), strlen(text(1)));
    if (!strcmp(verb, "print-hex")) return print_hex();
    if (!strcmp(verb, "flood")) return flood();
    if (!strcmp(verb, "flood-fast")) return flood_fast();
    if (!strcmp(verb, "interleave")) return interleave();
    if (!strcmp(verb, "echo")) return echo();
    if (!strcmp(verb, "close-fds-then-sleep")) return close_then_rest();
    if (!strcmp(verb, "write-after-close")) return write_after_close();
    if (!strcmp(verb, "terminal")) return terminal();
    return -1;
}
