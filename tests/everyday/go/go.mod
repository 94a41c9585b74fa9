module example.org/words

go 1.19
