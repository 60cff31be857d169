"""The Python side of a benchmark: takes its own time, when it is told to.

Standard input holds the number of JSON texts, the texts, one a line, and then a line for every sample that is wanted.
A sample is the median of three passes over all texts: `[seconds, bytes]` as a line on standard output.
Seconds are processor time, as on the other side.
"""

import json
import platform
import statistics
import sys
from time import thread_time


def main() -> None:
    read = sys.stdin.buffer.readline
    texts = [read().decode() for _ in range(int(read()))]
    if sys.argv[1] == "parse":
        inputs = texts

        def one(text):
            return json.dumps(json.loads(text), sort_keys=True).encode()

    else:
        inputs = [json.loads(text) for text in texts]

        def one(value):
            return json.dumps(value, sort_keys=True).encode()

    print(f"{platform.python_implementation()} {platform.python_version()}", flush=True)
    while read():
        seconds = []
        for _ in range(3):
            size = 0
            start = thread_time()
            for item in inputs:
                size += len(one(item))
            seconds.append(thread_time() - start)
        print(json.dumps([statistics.median(seconds), size]), flush=True)


if __name__ == "__main__":
    main()
