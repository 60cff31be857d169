"""Makes a topic, trying for a minute: a broker that has just started may refuse for a moment."""

import argparse
import sys
import time

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("brokers")
    parser.add_argument("topic")
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--config", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()

    admin = AdminClient({"bootstrap.servers": args.brokers})
    config = dict(setting.split("=", 1) for setting in args.config)
    topic = NewTopic(args.topic, num_partitions=args.partitions, replication_factor=1, config=config)
    end = time.monotonic() + 60
    while True:
        try:
            admin.create_topics([topic], request_timeout=10)[args.topic].result()
            break
        except KafkaException as error:
            if time.monotonic() > end:
                sys.exit(f"no topic: {error}")
            time.sleep(0.1)
    # Made is not yet known to the brokers.
    while not admin.list_topics(args.topic, timeout=10).topics[args.topic].partitions:
        if time.monotonic() > end:
            sys.exit("the topic has no partitions")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
