"""Serves the files of a directory to the clients of the tests, with TLS if a certificate is given.

usage: server.py DIRECTORY [CERTIFICATE KEY [TOKEN]]

Prints its port first, and then the port of each peer on accepting it, before a byte of it is read: a visit is one
even if nothing comes of it. With a token each request has to hold it in `Authorization`, as a bearer's or as a
password. A request that asks for a WebSocket gets one that sends the first message back. Ends
when its standard input does, so that no server outlives its test.
"""

import base64
import hashlib
import http.server
import ssl
import sys
import threading

directory, *certificate = sys.argv[1:]
token = certificate[2].encode() if len(certificate) > 2 else None
context = None
if certificate:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate[:2])


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60

    def __init__(self, *args):
        super().__init__(*args, directory=directory)

    def setup(self):
        # Here and not on accepting: a peer that is slow to greet delays no other.
        if context:
            self.request = context.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self):
        super().finish()
        # With TLS the server knows another socket than this one, and closes that.
        self.request.close()

    def is_authorized(self):
        scheme, _, given = self.headers.get("Authorization", "").rpartition(" ")
        if scheme.lower() == "basic":
            return base64.b64decode(given).partition(b":")[2] == token
        return given.encode() == token

    def do_GET(self):
        if token and not self.is_authorized():
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="tests"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.headers.get("Upgrade", "").lower() == "websocket":
            self.echo_message()
        else:
            super().do_GET()

    def echo_message(self):
        """One text message of at most 125 bytes, which clients mask and servers do not (RFC 6455)."""
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        _, length = self.rfile.read(2)
        mask = self.rfile.read(4)
        masked = self.rfile.read(length & 0x7F)
        message = bytes(byte ^ mask[at % 4] for at, byte in enumerate(masked))
        self.wfile.write(bytes([0x81, len(message)]) + message)
        self.close_connection = True

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    # Connections that wait to be accepted: beyond these, a peer tries again after a second.
    request_queue_size = 256

    def verify_request(self, request, client_address):
        print(client_address[1], flush=True)
        return True

    def handle_error(self, request, client_address):
        # A peer that leaves early is no news: the test looks at what the client says.
        pass


server = Server(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
