import http.server
import json
import socketserver
import urllib.parse


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64


class Words(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        query = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)
        body = json.dumps({"words": len(query.get("text", [""])[0].split())}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass
