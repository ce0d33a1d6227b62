"""A server that speaks what a run says to a vLLM server, in front of transformers' own passes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from safetensors.torch import load_file

from bestofk.models import load
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.sampling.vllm_worker import private, shape_of


class ServingPeer:
    """Serves the model of a folder on loopback; after `lives` completions requests it is gone.

    Args:
        loads: updates that it takes; it answers the others as if it had.
        scale: of the output projections it loads; with another than 1 it is another model.
        tokenises_again: it continues the text of the ids that it is sent.
        hides_prompts: it does not say which ids it continued.
        context: tokens that it has positions for.
        holds: called with each request before it is answered.
    """

    def __init__(
        self,
        folder: Any,
        port: int,
        *,
        lives: int = 10**9,
        loads: int = 10**9,
        scale: float = 1.0,
        tokenises_again: bool = False,
        hides_prompts: bool = False,
        context: int | None = None,
        holds: Callable[[dict[str, Any]], Any] = lambda body: None,
    ) -> None:
        self.policy, self.lives, self.loads, self.scale = load(folder), lives, loads, scale
        self.sampler = ModelSampler(self.policy.model, self.policy.tokenizer)
        self.tokenises_again, self.hides_prompts = tokenises_again, hides_prompts
        self.updates, self.gone = 0, threading.Event()
        peer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                send(self, {"data": [{"id": "m", "max_model_len": context}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                holds(body)
                with peer.lock:
                    answer = peer.answer(self.path, body)
                if answer is None:
                    self.close_connection = True
                    self.connection.close()
                else:
                    send(self, answer)

            def log_message(self, *_: Any) -> None:
                pass

        self.lock = threading.Lock()
        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.gone.set()

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        if path == "/reset_prefix_cache":
            return {"success": True}
        if path == "/v1/completions":
            self.lives -= 1
            if self.lives == -1:
                threading.Thread(target=self.close).start()
            return None if self.lives < 0 else self.complete(body)
        if body["method"] == "about_sampling":
            about = {"logprobs_mode": "processed_logprobs", "dtype": "float32"}
            return {"results": [about | shape_of(self.policy.model.config)]}
        weights = {k: w for file in private(body["args"][0]) for k, w in load_file(file).items()}
        loaded = {k: w * self.scale if "o_proj" in k else w for k, w in weights.items()}
        if self.updates < self.loads:
            missing = self.policy.model.load_state_dict(loaded, strict=False).missing_keys
            assert set(missing) <= {"lm_head.weight"}  # tied
        self.updates += 1
        return {"results": [{"tensors": len(weights)}]}

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        text = tuple(body["prompt"])
        if self.tokenises_again:
            tokenizer: Any = self.policy.tokenizer
            text = tuple(tokenizer(tokenizer.decode(text), add_special_tokens=False)["input_ids"])
        sampling = Sampling(
            samples_per_prompt=body["n"],
            max_new_tokens=body["max_tokens"],
            temperature=body["temperature"],
            stop=tuple(body["stop"]),
        )
        draws = np.random.default_rng(body["seed"]).random((1, sampling.n, sampling.max_new_tokens))
        ((_, rows),) = self.sampler.continue_from([text], draws, sampling)
        told = {} if self.hides_prompts else {"prompt_token_ids": text}
        choices = [
            {"index": i, "token_ids": ids.tolist(), **told,
             "finish_reason": "length" if len(ids) == sampling.max_new_tokens else "stop",
             "logprobs": {"token_logprobs": log_probs.tolist()}}
            for i, (ids, log_probs) in enumerate(rows)
        ]  # fmt: skip
        return {"choices": choices}


def send(handler: BaseHTTPRequestHandler, answer: dict[str, Any]) -> None:
    data = json.dumps(answer).encode()
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
