#include <stdlib.h>
#include <string.h>

int main(void)
{
    for (int i = 1; i < 1000; i++) {
        char *memory = malloc(i * 100);
        memset(memory, i, i * 100);
        free(memory);
    }
    return 0;
}
