import concurrent.futures
import json
import socket
import threading
import unittest
import urllib.request

import server


class ServerTest(unittest.TestCase):
    def setUp(self):
        self.server = server.Server(("localhost", 0), server.Words)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()

    def words(self, text):
        address = f"http://localhost:{self.server.server_address[1]}/?text={text}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            return json.load(answer)["words"]

    def test_one_request(self):
        self.assertEqual(self.words("one+two"), 2)

    def test_many_requests_at_once(self):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            self.assertEqual(set(pool.map(self.words, ["one+two+three"] * 64)), {3})

    def test_version_six(self):
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
            socket.create_connection(listener.getsockname()[:2], 30).close()


if __name__ == "__main__":
    unittest.main()
