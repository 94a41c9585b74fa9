"""What schemathesis does around each request to a daemon (see scripts/api-fuzz). An id that the document allows becomes that
of a thing that is there, so that handlers are reached and not only their `not found`; what a request has made is removed
again. What violates the document is sent as it was generated."""

import json
import os
import threading
import time
import urllib.error
import urllib.request

import schemathesis
from schemathesis import GenerationMode
from schemathesis.core.parameters import ParameterLocation

URL = os.environ["STOCKADE_FUZZ_URL"]
TOKEN = os.environ["STOCKADE_FUZZ_TOKEN"]
REQUEST_TIMEOUT_SECONDS = 60
# Between two looks for attached sandboxes: the answer to the request that made one ends when it is deleted.
ATTACHED_POLL_SECONDS = 0.2
# Reads its input until it is cancelled, or for the wall time that is configured.
READING_COMMAND = {"run": {"program": ["cat"]}, "stdin": "stream"}
SHORT_COMMAND = {"run": {"program": ["echo", "hello"]}}
# A file of the sandbox, in place of every second path of a query.
KNOWN_FILE = "known"


def send(method, path, data=None):
    """An answer: its body, or the reason of the failure and None."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/octet-stream"}
    request = urllib.request.Request(URL + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_SECONDS) as answer:
            return answer.read(), ""
    except urllib.error.HTTPError as error:
        return None, error.read().decode(errors="replace")


def ask(method, path, body=None):
    """The JSON of an answer. Fails where the daemon refuses."""
    said, reason = send(method, path, None if body is None else json.dumps(body).encode())
    if said is None:
        raise RuntimeError(f"{method} {path}: {reason}")
    return json.loads(said or b"null")


def find(path):
    """What is at a path; None where the daemon refuses."""
    said, _ = send("GET", path)
    return said and json.loads(said)


class Things:
    """One sandbox and one snapshot, made anew where requests have ended them, and executions in that sandbox."""

    def __init__(self):
        self.sandbox_id = self.snapshot_id = None
        self.known_paths = 0

    def sandbox(self):
        found = self.sandbox_id and find(f"/v1/sandboxes/{self.sandbox_id}")
        if not found or found["state"] == "ended":
            self.sandbox_id = ask("POST", "/v1/sandboxes", {})["id"]
        elif found["state"] == "paused":
            ask("POST", f"/v1/sandboxes/{self.sandbox_id}/resume")
        return self.sandbox_id

    def snapshot(self):
        if not (self.snapshot_id and find(f"/v1/snapshots/{self.snapshot_id}")):
            # Of a new sandbox: files that requests have made unreadable would be in the way.
            of = ask("POST", "/v1/sandboxes", {})["id"]
            self.snapshot_id = ask("POST", f"/v1/sandboxes/{of}/snapshots", {})["id"]
            send("DELETE", f"/v1/sandboxes/{of}")
        return self.snapshot_id

    def execution(self, command):
        return ask("POST", f"/v1/sandboxes/{self.sandbox()}/executions", command)["id"]

    def id_for(self, path):
        if path == "/v1/sandboxes/{id}/events":
            # These events last as long as their sandbox.
            return ask("POST", "/v1/sandboxes", {"lifetime": "200ms"})["id"]
        if path.startswith("/v1/sandboxes/"):
            return self.sandbox()
        if path.startswith("/v1/snapshots/"):
            return self.snapshot()
        # A stream of events lasts as long as its program.
        return self.execution(SHORT_COMMAND if path.endswith("/events") else READING_COMMAND)

    def known_file(self, given):
        """A file that is there, for every second path."""
        self.known_paths += 1
        if self.known_paths % 2:
            return given
        send("PUT", f"/v1/sandboxes/{self.sandbox_id}/files?path={KNOWN_FILE}&mode=644", b"hello")
        return KNOWN_FILE


things = Things()


def is_valid(case, location):
    """Whether the document allows what was generated for a part of the request."""
    component = case.meta and case.meta.components.get(location)
    return component is not None and component.mode == GenerationMode.POSITIVE


@schemathesis.hook
def before_call(context, case, kwargs):
    if "{id}" not in case.path or not is_valid(case, ParameterLocation.PATH):
        return
    case.path_parameters["id"] = things.id_for(case.path)
    if "path" in (case.query or {}) and is_valid(case, ParameterLocation.QUERY):
        case.query["path"] = things.known_file(case.query["path"])


@schemathesis.hook
def after_call(context, case, response):
    """Removes what was made and ends what was started, so that no later request meets a quota."""
    if case.path.startswith("/v1/executions/"):
        send("POST", f"/v1/executions/{case.path_parameters['id']}/cancel")
    if case.method != "POST" or response.status_code not in (200, 201):
        return
    if case.path == "/v1/sandboxes":
        send("DELETE", f"/v1/sandboxes/{response.json()['id']}")
    elif case.path.endswith("/fork"):
        for made in response.json()["sandboxes"]:
            send("DELETE", f"/v1/sandboxes/{made['id']}")
    elif case.path.endswith("/snapshots"):
        send("DELETE", f"/v1/snapshots/{response.json()['id']}")


def end_attached_sandboxes():
    while True:
        for name in (find("/v1/attached") or {}).get("names", ()):
            send("DELETE", f"/v1/attached?name={name}")
        time.sleep(ATTACHED_POLL_SECONDS)


threading.Thread(target=end_attached_sandboxes, daemon=True).start()
