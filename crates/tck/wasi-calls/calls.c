/* Makes every call of WASI preview 1 and looks at what comes of it. Prints a line for each that is not as
 * expected, and the number of calls that were made. Starts in an empty, writable directory. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wasi/api.h>

static int made, wrong;

/* A call, and the error number that is expected of it. */
#define EXPECT(number, call)                                                                       \
    do {                                                                                           \
        __wasi_errno_t seen = (call);                                                              \
        made++;                                                                                    \
        if (seen != (number)) {                                                                    \
            wrong++;                                                                               \
            printf("%s: expected %d, saw %d\n", #call, (number), seen);                            \
        }                                                                                          \
    } while (0)

#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            wrong++;                                                                               \
            printf("expected that %s\n", #condition);                                              \
        }                                                                                          \
    } while (0)

/* Not in the library's headers, or not with their numbers. */
#define IMPORT(name)                                                                               \
    __attribute__((import_module("wasi_snapshot_preview1"), import_name(#name)))
IMPORT(proc_raise) int32_t proc_raise(int32_t);
IMPORT(sock_accept) int32_t raw_sock_accept(int32_t, int32_t, int32_t);

/* The directory the program starts in: the last one that was given. */
static __wasi_fd_t here(void) {
    __wasi_fd_t found = 3;
    __wasi_prestat_t given;
    for (__wasi_fd_t fd = 3; __wasi_fd_prestat_get(fd, &given) == 0; fd++) found = fd;
    return found;
}

static void surroundings(void) {
    __wasi_size_t count, size;
    EXPECT(0, __wasi_args_sizes_get(&count, &size));
    HOLDS(count == 3);
    uint8_t **list = calloc(count + 1, sizeof *list), *text = malloc(size);
    EXPECT(0, __wasi_args_get(list, text));
    HOLDS(!strcmp((char *)list[1], "one") && !strcmp((char *)list[2], "two words"));
    EXPECT(0, __wasi_environ_sizes_get(&count, &size));
    list = calloc(count + 1, sizeof *list), text = malloc(size);
    EXPECT(0, __wasi_environ_get(list, text));
    HOLDS(getenv("GIVEN") && !strcmp(getenv("GIVEN"), "value"));
    __wasi_timestamp_t time = 0, later = 0;
    EXPECT(0, __wasi_clock_res_get(__WASI_CLOCKID_MONOTONIC, &time));
    EXPECT(0, __wasi_clock_time_get(__WASI_CLOCKID_REALTIME, 1, &time));
    HOLDS(time > 946684800ull * 1000000000ull);
    EXPECT(0, __wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 1, &time));
    EXPECT(0, __wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 1, &later));
    HOLDS(later >= time);
    EXPECT(0, __wasi_clock_time_get(__WASI_CLOCKID_PROCESS_CPUTIME_ID, 1, &time));
    uint8_t random[32] = {0}, other[32] = {0};
    EXPECT(0, __wasi_random_get(random, sizeof random));
    EXPECT(0, __wasi_random_get(other, sizeof other));
    HOLDS(memcmp(random, other, sizeof random));
    EXPECT(0, __wasi_sched_yield());
}

#define ALL_RIGHTS ((__wasi_rights_t)0x1fffffff)

static __wasi_fd_t opened(__wasi_fd_t dir, const char *name, __wasi_oflags_t how) {
    __wasi_fd_t fd = 0;
    EXPECT(0, __wasi_path_open(dir, 0, name, how, ALL_RIGHTS, ALL_RIGHTS, 0, &fd));
    return fd;
}

static void contents(__wasi_fd_t dir) {
    __wasi_fd_t fd = opened(dir, "file", __WASI_OFLAGS_CREAT | __WASI_OFLAGS_EXCL);
    __wasi_fd_t again;
    EXPECT(__WASI_ERRNO_EXIST, __wasi_path_open(dir, 0, "file", __WASI_OFLAGS_CREAT | __WASI_OFLAGS_EXCL,
                                                ALL_RIGHTS, ALL_RIGHTS, 0, &again));
    __wasi_ciovec_t out = {.buf = (const uint8_t *)"hello world", .buf_len = 11};
    __wasi_size_t count;
    EXPECT(0, __wasi_fd_write(fd, &out, 1, &count));
    HOLDS(count == 11);
    out.buf = (const uint8_t *)"WORLD", out.buf_len = 5;
    EXPECT(0, __wasi_fd_pwrite(fd, &out, 1, 6, &count));
    __wasi_filesize_t at;
    EXPECT(0, __wasi_fd_tell(fd, &at));
    HOLDS(at == 11);
    EXPECT(0, __wasi_fd_seek(fd, 0, __WASI_WHENCE_SET, &at));
    uint8_t data[16] = {0};
    __wasi_iovec_t in = {.buf = data, .buf_len = 5};
    EXPECT(0, __wasi_fd_read(fd, &in, 1, &count));
    HOLDS(count == 5 && !memcmp(data, "hello", 5));
    EXPECT(0, __wasi_fd_pread(fd, &in, 1, 6, &count));
    HOLDS(!memcmp(data, "WORLD", 5));
    EXPECT(0, __wasi_fd_filestat_set_size(fd, 8));
    __wasi_filestat_t stat;
    EXPECT(0, __wasi_fd_filestat_get(fd, &stat));
    HOLDS(stat.size == 8 && stat.filetype == __WASI_FILETYPE_REGULAR_FILE);
    EXPECT(0, __wasi_fd_filestat_set_times(fd, 0, 5000000000ull, __WASI_FSTFLAGS_MTIM));
    EXPECT(0, __wasi_fd_filestat_get(fd, &stat));
    HOLDS(stat.mtim == 5000000000ull);
    EXPECT(0, __wasi_fd_advise(fd, 0, 8, __WASI_ADVICE_SEQUENTIAL));
    EXPECT(__WASI_ERRNO_NOTSUP, __wasi_fd_allocate(fd, 0, 16));
    EXPECT(0, __wasi_fd_datasync(fd));
    EXPECT(0, __wasi_fd_sync(fd));
    __wasi_fdstat_t kind;
    EXPECT(0, __wasi_fd_fdstat_get(fd, &kind));
    EXPECT(0, __wasi_fd_fdstat_set_flags(fd, __WASI_FDFLAGS_APPEND));
    EXPECT(__WASI_ERRNO_NOTSUP, __wasi_fd_fdstat_set_rights(fd, 0, 0));
    __wasi_fd_t second = opened(dir, "file", 0);
    EXPECT(0, __wasi_fd_renumber(second, fd));
    EXPECT(__WASI_ERRNO_BADF, __wasi_fd_tell(second, &at));
    EXPECT(0, __wasi_fd_close(fd));
    EXPECT(__WASI_ERRNO_BADF, __wasi_fd_close(fd));
}

static void names(__wasi_fd_t dir) {
    EXPECT(0, __wasi_path_create_directory(dir, "sub"));
    EXPECT(__WASI_ERRNO_EXIST, __wasi_path_create_directory(dir, "sub"));
    __wasi_filestat_t stat;
    EXPECT(0, __wasi_path_filestat_get(dir, 0, "sub", &stat));
    HOLDS(stat.filetype == __WASI_FILETYPE_DIRECTORY);
    EXPECT(0, __wasi_path_filestat_set_times(dir, 0, "file", 0, 7000000000ull, __WASI_FSTFLAGS_MTIM));
    EXPECT(0, __wasi_path_link(dir, 0, "file", dir, "sub/hard"));
    EXPECT(0, __wasi_path_filestat_get(dir, 0, "sub/hard", &stat));
    HOLDS(stat.nlink == 2 && stat.mtim == 7000000000ull);
    EXPECT(0, __wasi_path_symlink("file", dir, "soft"));
    uint8_t target[16] = {0};
    __wasi_size_t count;
    EXPECT(0, __wasi_path_readlink(dir, "soft", target, sizeof target, &count));
    HOLDS(count == 4 && !memcmp(target, "file", 4));
    uint8_t entries[4096];
    EXPECT(0, __wasi_fd_readdir(dir, entries, sizeof entries, 0, &count));
    HOLDS(count > 0 && count < sizeof entries);
    EXPECT(0, __wasi_path_rename(dir, "file", dir, "sub/moved"));
    EXPECT(__WASI_ERRNO_NOENT, __wasi_path_filestat_get(dir, 0, "file", &stat));
    EXPECT(__WASI_ERRNO_NOTEMPTY, __wasi_path_remove_directory(dir, "sub"));
    EXPECT(0, __wasi_path_unlink_file(dir, "sub/moved"));
    EXPECT(0, __wasi_path_unlink_file(dir, "sub/hard"));
    EXPECT(0, __wasi_path_unlink_file(dir, "soft"));
    EXPECT(0, __wasi_path_remove_directory(dir, "sub"));
}

/* Everything that leads out of the directory is refused, however it is spelled. */
static void escapes(__wasi_fd_t dir) {
    const char *outside[] = {"..", "../..", "/", "/etc/passwd", "a/../../x", "./../../etc"};
    for (size_t at = 0; at < sizeof outside / sizeof *outside; at++) {
        __wasi_fd_t fd;
        __wasi_errno_t seen = __wasi_path_open(dir, 1, outside[at], 0, ALL_RIGHTS, ALL_RIGHTS, 0, &fd);
        made++;
        HOLDS(seen != 0);
    }
    EXPECT(__WASI_ERRNO_PERM, __wasi_path_symlink("/etc/passwd", dir, "absolute"));
    made++;
    if (__wasi_path_symlink("../../../../../../../../etc/passwd", dir, "relative") == 0) {
        __wasi_fd_t fd;
        HOLDS(__wasi_path_open(dir, 1, "relative", 0, ALL_RIGHTS, ALL_RIGHTS, 0, &fd) != 0);
        EXPECT(0, __wasi_path_unlink_file(dir, "relative"));
    }
}

static void waits(void) {
    __wasi_subscription_t wanted[2] = {
        {.userdata = 1,
         .u = {.tag = __WASI_EVENTTYPE_CLOCK,
               .u.clock = {.id = __WASI_CLOCKID_MONOTONIC, .timeout = 20000000}}},
        {.userdata = 2, .u = {.tag = __WASI_EVENTTYPE_FD_WRITE, .u.fd_write = {.file_descriptor = 1}}},
    };
    __wasi_event_t events[2];
    __wasi_size_t count;
    __wasi_timestamp_t before = 0, after = 0;
    EXPECT(0, __wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 1, &before));
    EXPECT(0, __wasi_poll_oneoff(wanted, events, 1, &count));
    EXPECT(0, __wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 1, &after));
    HOLDS(count == 1 && events[0].userdata == 1 && after - before >= 20000000);
    EXPECT(0, __wasi_poll_oneoff(wanted, events, 2, &count));
    HOLDS(count >= 1);
    EXPECT(__WASI_ERRNO_INVAL, __wasi_poll_oneoff(wanted, events, 0, &count));
}

/* No socket is given, and none can be made. */
static void sockets(void) {
    uint8_t data[4];
    __wasi_iovec_t in = {.buf = data, .buf_len = sizeof data};
    __wasi_ciovec_t out = {.buf = data, .buf_len = sizeof data};
    __wasi_size_t count;
    __wasi_roflags_t flags;
    made += 4;
    HOLDS(__wasi_sock_recv(3, &in, 1, 0, &count, &flags) != 0);
    HOLDS(__wasi_sock_send(3, &out, 1, 0, &count) != 0);
    HOLDS(__wasi_sock_shutdown(3, __WASI_SDFLAGS_RD) != 0);
    HOLDS(raw_sock_accept(3, 0, (int32_t)(intptr_t)&count) != 0);
}

int main(void) {
    __wasi_prestat_t given;
    __wasi_fd_t dir = here();
    char name[16] = "";
    EXPECT(0, __wasi_fd_prestat_get(dir, &given));
    EXPECT(0, __wasi_fd_prestat_dir_name(dir, (uint8_t *)name, given.u.dir.pr_name_len));
    HOLDS(!strcmp(name, "."));
    surroundings();
    contents(dir);
    names(dir);
    escapes(dir);
    waits();
    sockets();
    made++;
    HOLDS(proc_raise(0) == 0);
    printf("%d calls, %d not as expected\n", made, wrong);
    fflush(stdout);
    __wasi_proc_exit(wrong ? 1 : 77);
}
