// Serves one page over HTTP/2 with TLS and nothing else, in the manner of server.py.
//
// usage: http2.js CERTIFICATE KEY

const fs = require("node:fs");
const http2 = require("node:http2");

const [certificate, key] = process.argv.slice(2);
const server = http2.createSecureServer({ cert: fs.readFileSync(certificate), key: fs.readFileSync(key) });
server.on("connection", (socket) => console.log(socket.remotePort));
server.on("stream", (stream, headers) => stream.end(`${headers[":authority"]} over HTTP/2\n`));
server.on("sessionError", () => {});
server.on("tlsClientError", () => {});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
process.stdin.on("end", () => process.exit(0)).resume();
