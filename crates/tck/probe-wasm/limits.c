/* Verbs that use something up. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wasi/api.h>

#include "probe.h"

static uint64_t clock_of(__wasi_clockid_t id) {
    __wasi_timestamp_t time = 0;
    return __wasi_clock_time_get(id, 1, &time) == 0 ? time / 1000000 : 0;
}

/* Keeps busy until the clock has moved on by so many milliseconds. */
static int spin(__wasi_clockid_t id, uint64_t milliseconds) {
    volatile uint64_t mixed = 1;
    uint64_t begun = clock_of(id);
    while (clock_of(id) - begun < milliseconds)
        for (int at = 0; at < 10000; at++) mixed = mixed * 0x9e3779b97f4a7c15u + 7;
    printf("{\"ok\":true,\"ms\":%llu}\n", clock_of(__WASI_CLOCKID_PROCESS_CPUTIME_ID));
    return 0;
}

/* `allocate BYTES`: touches every page; says how far it got. */
static int allocate(void) {
    uint64_t wanted = number(0), got = 0;
    while (got < wanted) {
        uint64_t size = wanted - got < 1 << 20 ? wanted - got : 1 << 20;
        volatile char *piece = malloc(size);
        if (!piece) {
            printf("{\"ok\":false,\"bytes\":%llu,\"errno\":%d}\n", got, ENOMEM);
            return 0;
        }
        for (uint64_t at = 0; at < size; at += 4096) piece[at] = 1;
        got += size;
    }
    printf("{\"ok\":true,\"bytes\":%llu}\n", got);
    return 0;
}

/* `open-files N`: how many could be open at once. */
static int open_files(void) {
    for (uint64_t count = 0; count < number(0); count++) {
        if (open(".", O_RDONLY | O_DIRECTORY) < 0) {
            printf("{\"ok\":false,\"count\":%llu,\"errno\":%d}\n", count, errno);
            return 0;
        }
    }
    printf("{\"ok\":true,\"count\":%llu,\"errno\":null}\n", number(0));
    return 0;
}

int run_limits(const char *verb) {
    if (!strcmp(verb, "burn")) return spin(__WASI_CLOCKID_PROCESS_CPUTIME_ID, number(0));
    if (!strcmp(verb, "burn-for")) return spin(__WASI_CLOCKID_MONOTONIC, number(0));
    /* There are no children: the program itself uses what they would. */
    if (!strcmp(verb, "burn-children"))
        return spin(__WASI_CLOCKID_PROCESS_CPUTIME_ID, number(0) * number(1));
    if (!strcmp(verb, "allocate")) return allocate();
    if (!strcmp(verb, "open-files")) return open_files();
    return -1;
}
