import sys


def count(text):
    return len(text.split())


def main():
    print(count(" ".join(sys.argv[1:])))
