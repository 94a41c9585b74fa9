unsigned words(const char *text);
