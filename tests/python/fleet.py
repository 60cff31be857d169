"""Serves the receiver of docs/python/ for a test: some events fail, every effect is appended to a file."""

import argparse
import asyncio
import importlib.util
import pathlib
import random
from typing import Any

from redis.asyncio import Redis

import common

DOCUMENTED = pathlib.Path(__file__).parents[2] / "docs" / "python" / "receiver.py"


def documented() -> Any:
    spec = importlib.util.spec_from_file_location("documented_receiver", DOCUMENTED)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", required=True, help="URL of the de-dup store")
    parser.add_argument("--secret-env", required=True, help="environment variable that holds the secret")
    parser.add_argument("--out", required=True, help="file to append processed events to, as JSON Lines")
    parser.add_argument("--fail", type=float, default=0, help="share of the runs that fail, before the effect")
    args = parser.parse_args()
    chance = random.Random(20260701)

    async def process(key: str, envelope: Any) -> None:
        await asyncio.sleep(chance.uniform(0, 0.005))
        if chance.random() < args.fail:
            raise RuntimeError("fails on purpose")
        common.append_line(args.out, {"key": key, "event": envelope["event"]})

    secret = common.secret(args.secret_env).encode()
    redis = Redis.from_url(args.redis)
    common.serve(lambda lifespan: documented().make_app(redis, secret, process, lifespan=lifespan))


if __name__ == "__main__":
    main()
