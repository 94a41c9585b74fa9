/* The probe as a WebAssembly command: the verbs that make sense without processes, users and signals.
 * What cannot be tried here is refused as the interface refuses it, never played. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <wasi/api.h>

#include "probe.h"

/* Not in the library's headers. */
__attribute__((import_module("wasi_snapshot_preview1"), import_name("proc_raise")))
int32_t proc_raise(int32_t number);

static int count;
static char **given;

const char *text(int at) { return at + 2 < count ? given[at + 2] : ""; }

uint64_t number(int at) { return strtoull(text(at), NULL, 10); }

int told(int result) {
    if (result < 0) printf("{\"ok\":false,\"errno\":%d}\n", errno);
    else printf("{\"ok\":true}\n");
    return 0;
}

static int refused(int number) {
    errno = number;
    return told(-1);
}

void quote(const char *text) {
    putchar('"');
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (*at == '"' || *at == '\\') printf("\\%c", *at);
        else if (*at < 0x20) printf("\\u%04x", *at);
        else putchar(*at);
    }
    putchar('"');
}

void rest(uint64_t milliseconds) {
    struct timespec span = {.tv_sec = (time_t)(milliseconds / 1000),
                            .tv_nsec = (long)(milliseconds % 1000) * 1000000};
    nanosleep(&span, NULL);
}

static int ready_then_rest(void) {
    printf("ready\n");
    fflush(stdout);
    rest(number(0));
    return 0;
}

/* Adds a byte to a marker every ten milliseconds, for so long. */
static int beat(const char *marker, uint64_t milliseconds) {
    FILE *file = fopen(marker, "a");
    if (!file) return told(-1);
    for (uint64_t passed = 0; passed < milliseconds; passed += 10) {
        fputc('.', file);
        fflush(file);
        rest(10);
    }
    return fclose(file);
}

/* Nothing can be detached: the heart beats in the program itself, for as long as that stays. */
static int spawn_detached(void) {
    FILE *file = fopen(text(0), "a");
    if (!file || fputc('.', file) == EOF || fclose(file) != 0) return told(-1);
    told(0);
    fflush(stdout);
    return number(2) > 0 ? beat(text(0), number(2)) : 0;
}

static int tick(void) {
    for (uint64_t passed = 0; passed < number(0); passed += 10) {
        putchar('.');
        fflush(stdout);
        rest(10);
    }
    return 0;
}

/* No call leads to a network, so that a connection is refused before it is tried. */
static int connect_somewhere(void) {
    char byte;
    return recv(7, &byte, 1, 0) < 0 ? told(-1) : told(0);
}

static int listen_unix(void) {
    refused(ENOSYS);
    fflush(stdout);
    rest(number(1));
    return 0;
}

extern char **environ;

static void environment(void) {
    printf("\"environment\":{");
    for (char **at = environ; at && *at; at++) {
        char *equals = strchr(*at, '=');
        if (!equals) continue;
        *equals = 0;
        if (at != environ) putchar(',');
        quote(*at);
        putchar(':');
        quote(equals + 1);
        *equals = '=';
    }
    printf("},");
}

/* What is open, each number with the name of a directory that was given, if it is one. */
static void descriptors(void) {
    printf("\"descriptors\":{");
    int first = 1;
    for (__wasi_fd_t fd = 0; fd < 64; fd++) {
        __wasi_fdstat_t stat;
        if (__wasi_fd_fdstat_get(fd, &stat) != 0) continue;
        char name[4096] = "";
        __wasi_prestat_t given;
        if (__wasi_fd_prestat_get(fd, &given) == 0 && given.u.dir.pr_name_len < sizeof name &&
            __wasi_fd_prestat_dir_name(fd, (uint8_t *)name, given.u.dir.pr_name_len) != 0)
            name[0] = 0;
        printf(first ? "\"%u\":" : ",\"%u\":", fd);
        quote(name);
        first = 0;
    }
    printf("},");
}

static int report(void) {
    printf("{\"ok\":true,");
    environment();
    descriptors();
    printf("\"arguments\":[");
    for (int at = 0; at < count; at++) {
        if (at) putchar(',');
        quote(given[at]);
    }
    printf("],\"directory\":\".\",\"capabilities\":null,\"noNewPrivs\":null,\"interfaces\":null}\n");
    return 0;
}

/* `world`: what differs from one run to the next, unless somebody sees to it. */
static int world(void) {
    uint8_t bytes[16] = {0};
    __wasi_timestamp_t now = 0, passed = 0;
    if (__wasi_random_get(bytes, sizeof bytes) != 0) return MISUSED;
    if (__wasi_clock_time_get(__WASI_CLOCKID_REALTIME, 1, &now) != 0) return MISUSED;
    if (__wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 1, &passed) != 0) return MISUSED;
    /* The bits of a number that is none are the processor's own, unless they are made canonical. */
    volatile double zero = 0;
    volatile union { double number; uint64_t bits; } none = {.number = -(zero / zero)};
    printf("{\"ok\":true,\"now\":%llu,\"passed\":%llu,\"none\":%llu,\"random\":\"", now, passed,
           none.bits);
    for (size_t at = 0; at < sizeof bytes; at++) printf("%02x", bytes[at]);
    printf("\"}\n");
    return 0;
}

static int run_others(const char *verb) {
    if (!strcmp(verb, "exit")) return (int)number(0);
    if (!strcmp(verb, "sleep") || !strcmp(verb, "ignore-signals-then-sleep")) return ready_then_rest();
    if (!strcmp(verb, "signal-self")) return proc_raise((int32_t)number(0));
    if (!strcmp(verb, "spawn-detached")) return spawn_detached();
    if (!strcmp(verb, "tick")) return tick();
    if (!strcmp(verb, "kill") || !strcmp(verb, "remount")) return refused(ENOSYS);
    if (!strcmp(verb, "find-process")) return printf("{\"ok\":true,\"found\":0}\n") < 0;
    if (!strcmp(verb, "connect") || !strcmp(verb, "connect-unix")) return connect_somewhere();
    if (!strcmp(verb, "listen-unix")) return listen_unix();
    if (!strcmp(verb, "report")) return report();
    if (!strcmp(verb, "world")) return world();
    return -1;
}

int main(int argc, char **argv) {
    count = argc;
    given = argv;
    const char *verb = argc > 1 ? argv[1] : "";
    int (*const parts[])(const char *) = {run_others, run_files, run_limits, run_output};
    for (size_t at = 0; at < sizeof parts / sizeof *parts; at++) {
        int code = parts[at](verb);
        if (code >= 0) return code;
    }
    return MISUSED;
}
