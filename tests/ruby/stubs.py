"""Writes a module in text form that stands in for what a module imports from somewhere else than WASI.

Each function traps when it is called, but for those named on the command line, which give their argument
back. Usage: stubs.py MODULE FROM [GIVES-BACK…]
"""
import sys

VALUES = {0x7F: "i32", 0x7E: "i64", 0x7D: "f32", 0x7C: "f64"}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def byte(self):
        self.at += 1
        return self.data[self.at - 1]

    def number(self):
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                return value

    def text(self):
        size = self.number()
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def types(self):
        return [VALUES[self.byte()] for _ in range(self.number())]


def sections(data):
    reader = Reader(data)
    reader.at = 8
    while reader.at < len(data):
        kind, size = reader.byte(), reader.number()
        yield kind, Reader(data[reader.at : reader.at + size])
        reader.at += size


def imports(data):
    kinds = []
    for kind, section in sections(data):
        if kind == 1:
            for _ in range(section.number()):
                assert section.byte() == 0x60
                kinds.append((section.types(), section.types()))
        if kind == 2:
            for _ in range(section.number()):
                module, name, what = section.text(), section.text(), section.byte()
                assert what == 0, "only functions are stood in for"
                yield module, name, kinds[section.number()]


def main():
    data = open(sys.argv[1], "rb").read()
    print("(module")
    for module, name, (params, results) in imports(data):
        if module != sys.argv[2]:
            continue
        back = any(name.startswith(given) for given in sys.argv[3:])
        signature = "".join(f" (param {kind})" for kind in params)
        signature += "".join(f" (result {kind})" for kind in results)
        body = "(local.get 0)" if back and results else "" if back else "(unreachable)"
        print(f'  (func (export "{name}"){signature} {body})')
    print(")")


main()
