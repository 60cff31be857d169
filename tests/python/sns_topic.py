"""Makes a topic and a queue that gets its messages raw, and prints {topic_arn, queue_url}. What is there already stays."""

import argparse
import json

import boto3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", required=True, help="URL for SNS and SQS")
    parser.add_argument("--name", required=True, help="of both; with .fifo at the end both are FIFO")
    args = parser.parse_args()

    sns = boto3.client("sns", endpoint_url=args.endpoint)
    sqs = boto3.client("sqs", endpoint_url=args.endpoint)
    fifo = {"FifoQueue": "true"} if args.name.endswith(".fifo") else {}
    topic = sns.create_topic(Name=args.name, Attributes={"FifoTopic": "true"} if fifo else {})["TopicArn"]
    queue = sqs.create_queue(QueueName=args.name, Attributes=fifo)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"})
    print(json.dumps({"topic_arn": topic, "queue_url": queue}))


if __name__ == "__main__":
    main()
