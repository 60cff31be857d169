//! A proxy that breaks requests.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idemp_core::{Cause, Code, ErrorClass, IdempotencyKey, Message, Reason, RetrySchedule};
use idemp_dispatch::{Dispatcher, LaneConfig, Settlement};
use idemp_dlq::MemoryStore;
use idemp_testkit::peer::{Answer, Peer, Request};
use idemp_tests::{Suite, forward, selected};
use serde_json::{Value, json};

use crate::support::{LIMIT, Place, counts, heads, name};

/// What the proxy does with the first request of an event; later ones pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Does not pass it on, and answers that there is no room.
    Throttle,
    /// Passes it on, and answers with an error.
    ErrorAfter,
    /// Passes it on, and closes the connection.
    Cut,
    /// Answers each request with an error.
    AlwaysError,
    /// Refuses each request.
    AlwaysRefuse,
}

const FAULTS: [Fault; 6] = [
    Fault::None,
    Fault::Throttle,
    Fault::ErrorAfter,
    Fault::Cut,
    Fault::AlwaysError,
    Fault::AlwaysRefuse,
];

#[tokio::test(flavor = "multi_thread")]
async fn each_request_at_a_faulty_proxy_is_an_attempt_in_our_record() {
    if !selected(Suite::Sns) {
        return;
    }
    let place = Place::new();
    let topic = place.topic("faulty");
    let messages = numbered("run-1", 60);
    let faults: HashMap<String, Fault> = messages
        .iter()
        .zip(FAULTS.into_iter().cycle())
        .map(|(message, fault)| (message.key().to_string(), fault))
        .collect();
    let (proxy, requests) = proxy(place.server.address(), faults.clone()).await;

    let store = Arc::new(MemoryStore::new());
    let sink = topic.sink(&proxy.url("")).await;
    let mut lane = LaneConfig::new(name(), sink, Arc::clone(&store) as _);
    lane.schedule = RetrySchedule::default().scaled(0.01).unwrap();
    lane.attempt_timeout = Duration::from_secs(60);
    // Ten in a row are exhausted here on purpose.
    lane.breaker.exhausted_in_a_row = 1_000;
    let dispatcher = Dispatcher::new(vec![lane]).unwrap();
    let mut handles = Vec::new();
    for message in &messages {
        handles.push(dispatcher.submit(message.clone()).await.unwrap());
    }
    for handle in handles {
        let key = handle.key().to_string();
        let settlement = handle.settled().await.settlements()[0].1.clone();
        let at_proxy = requests.lock().unwrap()[&key];
        let fault = faults[&key];
        match (fault, settlement) {
            (Fault::None, Settlement::Delivered { attempts }) => assert_eq!((attempts, at_proxy), (1, 1)),
            (Fault::Throttle | Fault::ErrorAfter | Fault::Cut, Settlement::Delivered { attempts }) => {
                assert_eq!((attempts, at_proxy), (2, 2), "{fault:?}");
            }
            (Fault::AlwaysError, Settlement::DeadLettered { reason, attempts, .. }) => {
                assert_eq!((reason, attempts, at_proxy), (Reason::RetriesExhausted, 4, 4));
            }
            (Fault::AlwaysRefuse, Settlement::DeadLettered { reason, attempts, .. }) => {
                assert_eq!((reason, attempts, at_proxy), (Reason::EventRejected, 1, 1));
            }
            (fault, settlement) => panic!("{fault:?}: {settlement:?}"),
        }
    }
    let stats = dispatcher.shutdown(LIMIT).await.lanes.remove(0);
    let at_proxy: u64 = requests.lock().unwrap().values().sum();
    assert_eq!(stats.attempts, at_proxy);
    assert_eq!(proxy.requests().len() as u64, at_proxy);

    for head in heads(&*store).await {
        let fault = faults[head.key.as_str()];
        let (class, code) = match fault {
            Fault::AlwaysError => (ErrorClass::Ambiguous, "InternalError"),
            _ => (ErrorClass::RejectsEvent, "InvalidParameter"),
        };
        let cause = Cause::Code {
            class,
            code: Code::new(code),
        };
        assert_eq!(head.attempts.len() as u64, requests.lock().unwrap()[head.key.as_str()]);
        assert!(
            head.attempts.iter().all(|attempt| attempt.cause == Some(cause)),
            "{fault:?}"
        );
        assert_eq!(head.maybe_delivered, fault == Fault::AlwaysError);
    }
    // What was passed on before the fault is there twice: 10 after an error, 10 after a cut.
    let (counted, _) = topic.received(&place.server.url(), &lines(&place.dir, &messages));
    assert_eq!(counted, counts(40 + 20, 20, 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_once_makes_one_request_and_counts_what_is_lost() {
    if !selected(Suite::Sns) {
        return;
    }
    let place = Place::new();
    let topic = place.topic("once");
    let messages = numbered("run-1", 12);
    let faults = [Fault::None, Fault::Throttle, Fault::ErrorAfter, Fault::Cut];
    let faults = messages.iter().zip(faults.into_iter().cycle());
    let faults = faults.map(|(message, fault)| (message.key().to_string(), fault));
    let (proxy, requests) = proxy(place.server.address(), faults.collect()).await;
    let mut lane = LaneConfig::at_most_once(name(), topic.sink(&proxy.url("")).await);
    lane.attempt_timeout = Duration::from_secs(60);
    let dispatcher = Dispatcher::new(vec![lane]).unwrap();
    for message in &messages {
        let report = dispatcher.dispatch(message.clone()).await.unwrap();
        let settlement = &report.settlements()[0].1;
        assert!(
            matches!(
                settlement,
                Settlement::Delivered { attempts: 1 }
                    | Settlement::Dropped {
                        reason: Reason::RetriesExhausted,
                        ..
                    }
            ),
            "{settlement:?}"
        );
    }
    let stats = dispatcher.shutdown(LIMIT).await.lanes.remove(0);
    assert_eq!((stats.delivered, stats.dropped, stats.attempts), (3, 9, 12));
    assert!(requests.lock().unwrap().values().all(|count| *count == 1));
    // Those that were throttled are lost for good; nothing is there twice.
    let (counted, _) = topic.received(&place.server.url(), &lines(&place.dir, &messages));
    assert_eq!(counted, counts(9, 3, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fifo_topic_drops_the_copies() {
    if !selected(Suite::Sns) {
        return;
    }
    let place = Place::new();
    let topic = place.topic("ordered.fifo");
    let mut messages = numbered("run-1", 20);
    // Too long for a de-duplication id as it is.
    messages.extend(numbered(&"r".repeat(64), 2).into_iter().map(|message| {
        let key = message.key();
        let key = format!("{}:{}:{}", key.run_id(), "t".repeat(64), key.step_index());
        Message::new(IdempotencyKey::parse(&key).unwrap(), &"long").unwrap()
    }));
    let faults = messages.iter().map(|message| (message.key().to_string(), Fault::Cut));
    let (proxy, requests) = proxy(place.server.address(), faults.collect()).await;

    let mut lane = LaneConfig::new(name(), topic.sink(&proxy.url("")).await, Arc::new(MemoryStore::new()));
    lane.schedule = RetrySchedule::default().scaled(0.01).unwrap();
    lane.attempt_timeout = Duration::from_secs(60);
    let dispatcher = Dispatcher::new(vec![lane]).unwrap();
    for message in &messages {
        let report = dispatcher.dispatch(message.clone()).await.unwrap();
        assert!(report.all_delivered(), "{report:?}");
    }
    dispatcher.shutdown(LIMIT).await;
    assert!(requests.lock().unwrap().values().all(|count| *count == 2));
    assert_eq!(
        topic.received(&place.server.url(), &lines(&place.dir, &messages)),
        (counts(22, 0, 0), 0)
    );
}

/// A proxy in front of the server that breaks requests as told, and how many it saw by key.
async fn proxy(server: SocketAddr, faults: HashMap<String, Fault>) -> (Peer, Arc<Mutex<HashMap<String, u64>>>) {
    let requests: Arc<Mutex<HashMap<String, u64>>> = Arc::default();
    let seen = Arc::clone(&requests);
    let peer = Peer::start(move |request| {
        let key = key_of(request);
        let count = {
            let mut seen = seen.lock().unwrap();
            let count = seen.entry(key.clone()).or_default();
            *count += 1;
            *count
        };
        let pass = || {
            let Request {
                method,
                target,
                headers,
                body,
                ..
            } = request;
            tokio::task::block_in_place(|| forward(server, method, target, headers, body)).unwrap()
        };
        match (faults[&key], count) {
            (Fault::AlwaysError, _) => refused(500, "InternalError"),
            (Fault::AlwaysRefuse, _) => refused(400, "InvalidParameter"),
            (Fault::Throttle, 1) => refused(400, "Throttling"),
            (Fault::ErrorAfter, 1) => {
                pass();
                refused(500, "InternalError")
            }
            (Fault::Cut, 1) => {
                pass();
                Answer::close()
            }
            _ => Answer::raw(pass()),
        }
    })
    .await;
    (peer, requests)
}

/// The key in a form whose fields are encoded: the value of the attribute of that name.
fn key_of(request: &Request) -> String {
    let form = std::str::from_utf8(&request.body).unwrap();
    let (_, rest) = form.split_once("Name=idempotency-key").unwrap();
    let (_, value) = rest.split_once("StringValue=").unwrap();
    value.split('&').next().unwrap().replace("%3A", ":")
}

fn refused(status: u16, code: &str) -> Answer {
    Answer::status(status).header("Content-Type", "text/xml").body(format!(
        "<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>by the proxy</Message></Error>\
         <RequestId>1</RequestId></ErrorResponse>"
    ))
}

/// Steps of one run.
fn numbered(run: &str, count: u64) -> Vec<Message> {
    let message = |step: u64| {
        let key = IdempotencyKey::parse(&format!("{run}:tool_end:{step}")).unwrap();
        Message::new(key, &step).unwrap()
    };
    (1..=count).map(message).collect()
}

/// Writes events in the form of the corpus.
fn lines(dir: &tempfile::TempDir, messages: &[Message]) -> PathBuf {
    let mut text = String::new();
    for message in messages {
        let key = message.key();
        let data: Value = serde_json::from_slice(&message.data()).unwrap();
        let line = json!({
            "run_id": key.run_id(), "event": key.event_type(), "step_index": key.step_index().as_u64(), "data": data,
        });
        writeln!(text, "{line}").unwrap();
    }
    let path = dir.path().join("sent.jsonl");
    std::fs::write(&path, text).unwrap();
    path
}
