package main

import (
	"fmt"
	"os"
	"strings"

	"example.org/words/counting"
)

func main() { fmt.Println(counting.Words(strings.Join(os.Args[1:], " "))) }
