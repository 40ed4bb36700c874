#!/usr/bin/env python3
"""Records what llama.cpp's server answers to `prefillbench validate`, for the tests of that verb.

    tests/peers/record_llama_validate.py --server http://127.0.0.1:8080 --out DIR [--binary FILE] \
        [-- MORE FLAGS OF validate]

It forwards every request to the server and writes DIR/exchanges.json: method, path, body, status
and answer of each, bodies as they came but for the model's path. Answers to one request stand in
the order in which they came. Of the requests that only keep the server busy, each is kept once.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Few and short prompts keep the file small; so few say nothing of a mean, hence the wide margin.
FLAGS = ["--prompts", "3", "--prompt-len", "64", "--output-len", "4", "--top-logprobs", "5",
         "--background", "2", "--nll-margin", "0.5"]


def forward(server, method, path, body):
    request = urllib.request.Request(server + path, method=method, data=body or None)
    request.add_header("content-type", "application/json")
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def proxy(server, exchanges):
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def handled(self):
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, answer = forward(server, self.command, self.path, body)
            asked = {"method": self.command, "path": self.path,
                     "body": json.loads(body) if body else None}
            busy = asked["body"] and "logprobs" not in asked["body"] and "max_tokens" in asked["body"]
            with lock:
                known = any(all(one[k] == asked[k] for k in asked) for one in exchanges)
                if not (busy and known):
                    exchanges.append(asked | {"status": status, "answer": answer.decode()})
            try:
                self.send_response_only(status)
                self.send_header("server", "llama.cpp")
                self.send_header("content-type", "application/json; charset=utf-8")
                self.send_header("content-length", str(len(answer)))
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(answer)
            except BrokenPipeError:
                pass  # A request that keeps the server busy is dropped at the end.

        do_GET = do_POST = handled

        def log_message(self, *_):
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--binary", default="target/release/prefillbench")
    parser.add_argument("more", nargs="*")
    args = parser.parse_args()
    exchanges = []
    listener = proxy(args.server, exchanges)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    url = "http://127.0.0.1:%d" % listener.server_address[1]
    command = [args.binary, "validate", "--base-url", url, "--model", "smollm2", "--nonce", "1"]
    done = subprocess.run(command + FLAGS + args.more)
    if done.returncode not in (0, 1, 3):
        sys.exit("validate failed: %d" % done.returncode)
    _, props = forward(args.server, "GET", "/props", None)
    props = json.loads(props)
    # Where the model lies is nobody's business.
    path = props.get("model_path", "")
    for one in exchanges if path else []:
        one["answer"] = one["answer"].replace(path, pathlib.PurePath(path).name)
    document = {"server": props.get("build_info"), "flags": FLAGS + args.more,
                "exit_code": done.returncode, "exchanges": exchanges}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "exchanges.json").write_text(
        json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")
    print("%d exchanges, exit code %d" % (len(exchanges), done.returncode))


if __name__ == "__main__":
    main()
