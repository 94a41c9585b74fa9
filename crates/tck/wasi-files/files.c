/* Uses files as a program does, until something says no; told by its first argument. Prints what came of
 * it. Runs as a module of preview 1 and, behind an adapter, as a component of preview 2. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST 100000

static char block[64 << 10];

/* Makes, reads, lists, moves and removes. */
static int use(void) {
    char text[16] = {0};
    int fd = open("note", O_CREAT | O_RDWR, 0644);
    if (fd < 0 || write(fd, "hello", 5) != 5 || pread(fd, text, 15, 0) != 5) return 1;
    if (strcmp(text, "hello") || ftruncate(fd, 2) || close(fd)) return 2;
    if (mkdir("made", 0755) || rename("note", "made/moved") || symlink("moved", "made/soft")) return 3;
    struct stat found;
    if (stat("made/soft", &found) || found.st_size != 2 || !S_ISREG(found.st_mode)) return 4;
    int seen = 0;
    DIR *dir = opendir("made");
    if (!dir) return 5;
    for (struct dirent *entry; (entry = readdir(dir));) seen += entry->d_name[0] != '.';
    if (closedir(dir) || seen != 2) return 6;
    if (open("made/none", O_RDONLY) >= 0 || errno != ENOENT) return 7;
    if (unlink("made/soft") || unlink("made/moved") || rmdir("made")) return 8;
    return 0;
}

/* Writes until there is no room. */
static long fill(void) {
    long written = 0, count;
    int fd = open("big", O_CREAT | O_WRONLY, 0644);
    while (written < 1 << 30 && (count = write(fd, block, sizeof block)) > 0) written += count;
    return written;
}

/* Makes files with nothing in them until there is no room. */
static long empty(void) {
    for (long made = 0; made < MOST; made++) {
        char name[32];
        snprintf(name, sizeof name, "empty%ld", made);
        int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
        if (fd < 0) return made;
        close(fd);
    }
    return MOST;
}

/* Opens one file until no more may be open. */
static long hold(void) {
    close(open("one", O_CREAT | O_WRONLY, 0644));
    for (long held = 0; held < MOST; held++)
        if (open("one", O_RDONLY) < 0) return held;
    return MOST;
}

int main(int count, char **args) {
    const char *verb = count > 1 ? args[1] : "use";
    errno = 0;
    if (!strcmp(verb, "use")) printf("use %d\n", use());
    if (!strcmp(verb, "fill")) printf("fill %ld", fill());
    if (!strcmp(verb, "empty")) printf("empty %ld", empty());
    if (!strcmp(verb, "hold")) printf("hold %ld", hold());
    if (!strcmp(verb, "pipe")) printf("pipe %d", open("pipe", count > 2 ? O_WRONLY : O_RDONLY) < 0);
    if (strcmp(verb, "use")) printf(" %s\n", strerror(errno));
    return 0;
}
