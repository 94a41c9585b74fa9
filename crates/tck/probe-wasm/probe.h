/* What the parts of the probe share. Each verb tries one thing and says on standard output what came of
 * it, as one JSON object, or ends with a code of its own. */
#ifndef PROBE_H
#define PROBE_H

#include <stdint.h>
#include <stdio.h>

/* Exit code for a verb that does not exist: the kit's own mistake. */
#define MISUSED 250

/* The arguments after the verb; those that are missing are empty. */
const char *text(int at);
uint64_t number(int at);

/* Prints `{"ok":true}`, or `{"ok":false,"errno":N}` for a result below zero. */
int told(int result);

/* Prints a JSON string. */
void quote(const char *text);

/* Waits for that many milliseconds. */
void rest(uint64_t milliseconds);

/* Each runs a verb that it knows, or answers -1. */
int run_files(const char *verb);
int run_limits(const char *verb);
int run_output(const char *verb);

#endif
