use std::cell::LazyCell;
use std::fmt;

use bytes::Bytes;
use idemp_core::{Secret, Signer};
use idemp_receiver::{BadRequest, Incoming, MemoryStore, Receiver, ReceiverConfig, Reply};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use tokio::runtime::{Builder, Runtime};

use crate::levels;

/// The receiver reads bodies up to this depth.
const DEPTH: usize = 512;

thread_local! {
    static RUNTIME: LazyCell<Runtime> =
        LazyCell::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime"));
}

/// Signed bodies into a receiver, beside serde_json.
pub fn receive(body: &[u8]) {
    let expected = Envelope::read(body);
    let reply = RUNTIME.with(|runtime| runtime.block_on(reply(body)));
    match reply {
        (Reply::Ok, Some(seen)) => assert_eq!(Some(seen), expected),
        (Reply::BadRequest(BadRequest::NotAnEvent), None) => {
            assert!(expected.is_none() || levels(body) > DEPTH, "serde_json takes it");
        }
        other => panic!("{other:?}"),
    }
}

/// The reply, and what the handler was given.
async fn reply(body: &[u8]) -> (Reply, Option<Envelope>) {
    let secret = Secret::new("whsec_fuzz_secret").expect("a secret");
    let signature = Signer::new(&secret).header(body);
    let receiver =
        Receiver::new(MemoryStore::new(), &secret.into(), ReceiverConfig::default()).expect("the default is good");
    let incoming = Incoming {
        key: "k1".into(),
        signature: signature.as_str().into(),
        body: Bytes::copy_from_slice(body),
        ..Incoming::default()
    };
    let (sender, mut seen) = tokio::sync::oneshot::channel();
    let reply = receiver.receive(incoming, |event| async move {
        let data = std::str::from_utf8(event.data_bytes()).expect("a body is UTF-8");
        let envelope = Envelope {
            event: event.event_type().to_owned(),
            data: data.to_owned(),
        };
        sender.send(envelope).expect("the test waits");
        Ok(())
    });
    (reply.await, seen.try_recv().ok())
}

/// An object with a string `event` and a `data`; of equal names the last counts.
#[derive(Debug, PartialEq)]
struct Envelope {
    event: String,
    data: String,
}

impl Envelope {
    fn read(body: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(body).ok()?;
        let members: Members<'_> = serde_json::from_str(text).ok()?;
        Some(Self {
            event: serde_json::from_str(members.event?.get()).ok()?,
            data: members.data?.get().to_owned(),
        })
    }
}

struct Members<'b> {
    event: Option<&'b RawValue>,
    data: Option<&'b RawValue>,
}

impl<'de: 'b, 'b> Deserialize<'de> for Members<'b> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let (mut event, mut data) = (None, None);
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "event" => event = Some(map.next_value()?),
                        "data" => data = Some(map.next_value()?),
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(Members { event, data })
            }
        }

        deserializer.deserialize_map(Object)
    }
}
