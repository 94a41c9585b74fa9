package org.example;

import static org.junit.Assert.assertEquals;

import org.junit.Test;

public class WordsTest {
    @Test
    public void wordsAreCounted() {
        assertEquals(2, Words.count("one two"));
    }
}
