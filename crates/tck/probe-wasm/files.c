/* Verbs about files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "probe.h"

/* The most that `read` gives back. */
#define MOST (1 << 20)

/* `fill PATH BYTES`: how much could be written. */
static int fill(void) {
    static char piece[64 << 10];
    uint64_t wanted = number(1), done = 0;
    int fd = open(text(0), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0) return told(-1);
    while (done < wanted) {
        uint64_t size = wanted - done < sizeof piece ? wanted - done : sizeof piece;
        ssize_t written = write(fd, piece, size);
        if (written < 0) {
            printf("{\"ok\":false,\"bytes\":%llu,\"errno\":%d}\n", done, errno);
            return 0;
        }
        done += (uint64_t)written;
    }
    printf("{\"ok\":true,\"bytes\":%llu,\"errno\":null}\n", done);
    return 0;
}

/* `fill-many DIRECTORY BYTES`: many files, so that no limit on one of them helps. */
static int fill_many(void) {
    static char piece[1 << 20];
    uint64_t wanted = number(1), done = 0;
    for (int at = 0; done < wanted; at++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/filler-%d", text(0), at);
        int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        for (int part = 0; part < 8; part++, done += sizeof piece) {
            if (fd < 0 || write(fd, piece, sizeof piece) < 0) {
                printf("{\"ok\":false,\"bytes\":%llu,\"errno\":%d}\n", done, errno);
                return 0;
            }
        }
        close(fd);
    }
    printf("{\"ok\":true,\"bytes\":%llu}\n", done);
    return 0;
}

/* `read PATH`: its bytes as hexadecimal digits. */
static int read_file(void) {
    static unsigned char piece[4096];
    int fd = open(text(0), O_RDONLY);
    if (fd < 0) return told(-1);
    ssize_t count = read(fd, piece, sizeof piece);
    if (count < 0) return told(-1);
    printf("{\"ok\":true,\"hex\":\"");
    for (size_t total = 0; count > 0 && total < MOST; count = read(fd, piece, sizeof piece)) {
        for (ssize_t at = 0; at < count; at++) printf("%02x", piece[at]);
        total += (size_t)count;
    }
    printf("\"}\n");
    return 0;
}

/* `write PATH TEXT`. */
static int write_file(void) {
    int fd = open(text(0), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0) return told(-1);
    return told(write(fd, text(1), strlen(text(1))) < 0 || close(fd) < 0 ? -1 : 0);
}

static int in_order(const void *one, const void *two) {
    return strcmp(*(char *const *)one, *(char *const *)two);
}

/* `list PATH`: the names in it. */
static int list(void) {
    static char *names[100000];
    size_t count = 0;
    DIR *directory = opendir(text(0));
    if (!directory) return told(-1);
    for (struct dirent *entry; count < 100000 && (entry = readdir(directory));)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            names[count++] = strdup(entry->d_name);
    qsort(names, count, sizeof *names, in_order);
    printf("{\"ok\":true,\"names\":[");
    for (size_t at = 0; at < count; at++) {
        if (at) putchar(',');
        quote(names[at]);
    }
    printf("]}\n");
    return 0;
}

/* `stat PATH`: what it is, without following it. */
static int stat_file(void) {
    struct stat found;
    if (lstat(text(0), &found) < 0) return told(-1);
    printf("{\"ok\":true,\"size\":%lld,\"mode\":%u}\n", found.st_size, found.st_mode);
    return 0;
}

int run_files(const char *verb) {
    if (!strcmp(verb, "fill")) return fill();
    if (!strcmp(verb, "fill-many")) return fill_many();
    if (!strcmp(verb, "read")) return read_file();
    if (!strcmp(verb, "write")) return write_file();
    if (!strcmp(verb, "remove")) return told(unlink(text(0)));
    if (!strcmp(verb, "make-link")) return told(symlink(text(0), text(1)));
    if (!strcmp(verb, "list")) return list();
    if (!strcmp(verb, "stat")) return stat_file();
    if (!strcmp(verb, "make-fifo")) {
        errno = ENOSYS;
        return told(-1);
    }
    return -1;
}
