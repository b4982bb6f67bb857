"""A web server keeps a session for each path that a client asks for."""
import http.server
import threading
import urllib.request

sessions = {}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        sessions[self.path] = {"history": [f"{self.path} {i}" for i in range(100)]}
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def client():
    for i in range(12000):
        urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/{i}").read()
    server.shutdown()


threading.Thread(target=client).start()
server.serve_forever()
