// Package counting counts words.
package counting

import "strings"

// Words is the number of words in a text.
func Words(text string) int { return len(strings.Fields(text)) }
