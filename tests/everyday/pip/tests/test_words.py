import pathlib
import subprocess
import sys
import unittest

import words


class WordsTest(unittest.TestCase):
    def test_words_are_counted(self):
        self.assertEqual(words.count("one two"), 2)

    def test_the_installed_program_counts_its_arguments(self):
        program = pathlib.Path(sys.prefix) / "bin/words"
        self.assertEqual(subprocess.check_output([program, "one", "two", "three"]), b"3\n")


if __name__ == "__main__":
    unittest.main()
