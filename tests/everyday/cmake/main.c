#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#include "counting.h"

static void *count(void *text)
{
    return (void *)(uintptr_t)words(text);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    void *result;
    if (argc != 2 || pthread_create(&thread, NULL, count, argv[1]) || pthread_join(thread, &result))
        return 1;
    printf("%u\n", (unsigned)(uintptr_t)result);
    return 0;
}
