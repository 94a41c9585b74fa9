#include <stdlib.h>
#include <string.h>

static char *volatile memory;

int main(int argc, char **argv)
{
    memory = malloc(100);
    if (argc > 1 && !strcmp(argv[1], "use")) {
        free(memory);
        return memory[1];
    }
    memory = NULL;
    return 0;
}
