#!/usr/bin/env python3
"""chat_judge.py --address URL --model NAME [OPTIONS]: a filter of groups that asks a server whether
the thinking of each completion supports its answer.

The server speaks the chat-completion protocol that most model servers have: a POST of `model` and
`messages` to URL/chat/completions. It must end its reply with "Verdict: yes" or "Verdict: no". The
section `consistency` gets a verdict for each completion (1, 0, or null if there is none), the
server's reply as the reason, and the model's name as the judge. A request that fails in the end
gives null, with the failure as the reason.

--prompt is a file with the wording. {question}, {thinking} and {answer} stand for the completion's.
--key is the name of an environment variable that holds the key of the server.

In a pipeline, `replicas` is the number of requests at the same time, and --rate counts for each.
"""
import argparse
import http.client
import json
import os
import pathlib
import re
import sys
import time
import urllib.error
import urllib.request

RETRIED = {408, 409, 425, 429}  # and every 5xx
LONGEST_PAUSE = 60  # seconds
LONGEST_REPLY = 1 << 22  # bytes


def parse_options():
    parser = argparse.ArgumentParser(description="asks a chat-completion server whether thinking supports the answer")
    parser.add_argument("--address", required=True, help="such as http://127.0.0.1:8000/v1")
    parser.add_argument("--model", required=True, help="the name that the server knows")
    parser.add_argument("--prompt", default=pathlib.Path(__file__).with_name("chat_judge.txt"),
                        help="file with the wording (default: chat_judge.txt beside this program)")
    parser.add_argument("--key", help="environment variable with the server's key")
    parser.add_argument("--tokens", type=int, default=512, help="most tokens of a reply")
    parser.add_argument("--timeout", "--request_timeout", type=float, default=120,
                        help="seconds to wait for a reply; in a pipeline it is request_timeout, because timeout is caravan's")
    parser.add_argument("--retries", type=int, default=5, help="requests after the first one that fails")
    parser.add_argument("--pause", type=float, default=1, help="seconds before the first retry; doubles each time")
    parser.add_argument("--rate", type=float, default=0, help="most requests a minute; 0 is no limit")
    options = parser.parse_args()
    if not re.match(r"https?://[^/]", options.address):
        parser.error("--address: not http:// or https://: " + options.address)
    if options.key and not os.environ.get(options.key):
        parser.error("--key: the environment variable " + options.key + " is not set")
    try:
        options.wording = pathlib.Path(options.prompt).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        parser.error("--prompt: " + str(error))
    return options


class Server:
    """The server, and when it was last asked."""

    def __init__(self, options):
        self.options = options
        self.url = options.address.rstrip("/") + "/chat/completions"
        self.headers = {"Content-Type": "application/json"}
        if options.key:
            self.headers["Authorization"] = "Bearer " + os.environ[options.key]
        self.next_time = 0.0

    def post(self, prompt):
        """Returns the reply to one request. Raises what went wrong."""
        body = {
            "model": self.options.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": self.options.tokens,
        }
        if self.options.rate > 0:
            time.sleep(max(0.0, self.next_time - time.monotonic()))
            self.next_time = time.monotonic() + 60 / self.options.rate
        request = urllib.request.Request(self.url, json.dumps(body).encode(), self.headers)
        with urllib.request.urlopen(request, timeout=self.options.timeout) as answer:
            reply = json.loads(answer.read(LONGEST_REPLY))["choices"][0]["message"]["content"]
        if not isinstance(reply, str):
            raise ValueError("the reply has no text")
        return reply.encode("utf-8", "replace").decode()  # without half a surrogate pair

    def ask(self, prompt):
        """Returns the reply, or None and the reason after the last failure."""
        pause = self.options.pause
        for attempt in range(self.options.retries + 1):
            wait, again = pause, True
            try:
                return self.post(prompt), None
            except urllib.error.HTTPError as error:
                reason = f"HTTP {error.code} {error.reason}"
                again = error.code in RETRIED or error.code >= 500
                after = error.headers.get("Retry-After", "") if error.headers else ""
                wait = float(after) if re.fullmatch(r"\d{1,6}(\.\d+)?", after) else pause
                error.close()
            except (OSError, http.client.HTTPException) as error:
                reason = str(getattr(error, "reason", error)) or type(error).__name__
            except (ValueError, KeyError, IndexError, TypeError) as error:
                reason = f"not a chat completion ({type(error).__name__}: {error})"
            print(f"{self.url}: {reason}", file=sys.stderr)
            if not again or attempt == self.options.retries:
                break
            time.sleep(min(wait, LONGEST_PAUSE))
            pause *= 2
        return None, f"no reply: {reason}"


def text_of(messages):
    """The text of a conversation, for groups whose prompt has no `question`."""
    parts = []
    for message in messages:
        content = message.get("content")
        content = [{"text": content}] if isinstance(content, str) else content or []
        parts += [part["text"] for part in content if part.get("text")]
    return "\n".join(parts)


def judge(server, question, text):
    """Returns a completion's verdict and the reason."""
    thinking = re.search(r"<think>(.*?)</think>", text, re.DOTALL)
    answer = re.search(r"<answer>\s*(.*?)\s*</answer>", text, re.DOTALL)
    if not thinking or not answer or not answer[1]:
        return None, "there is no thinking or no answer"
    fields = {"{question}": question, "{thinking}": thinking[1], "{answer}": answer[1]}
    prompt = re.sub(r"\{(question|thinking|answer)\}", lambda match: fields[match[0]], server.options.wording)
    reply, reason = server.ask(prompt)
    if reply is None:
        return None, reason
    verdicts = re.findall(r"verdict\W*(yes|no)\b", reply, re.IGNORECASE)
    if not verdicts:
        return None, "no verdict in the reply: " + reply
    return int(verdicts[-1].lower() == "yes"), reply


def main():
    options = parse_options()
    server = Server(options)
    sys.stdin.reconfigure(encoding="utf-8")
    sys.stdout.reconfigure(encoding="utf-8")
    for line in sys.stdin:
        if not line.strip():
            continue
        group = json.loads(line)
        if not group.get("quarantine"):
            prompt = group["prompt"]
            question = prompt.get("question") or text_of(prompt["messages"])
            judged = [judge(server, question, completion.get("text") or "") for completion in group["completions"]]
            consistency = group.setdefault("consistency", {})
            consistency["verdict"] = [verdict for verdict, _ in judged]
            consistency["reason"] = [reason for _, reason in judged]
            consistency["judge"] = options.model
        print(json.dumps(group, ensure_ascii=False), flush=True)


main()
